"""The live page: what it shows, how it is kept up to date, and the page of the API.

    window.py    cumulative counts of some seconds -> rates, percentiles
    snapshot.py  the pool's account, counters and flight records -> one snapshot for people
    stream.py    a snapshot a second to every viewer, as server-sent events
    assets.py    the files beside this one: HTML, CSS and JavaScript as they are, no build
    routes.py    / , /events, /docs, /openapi.json and the files

Nothing here runs per request, and nothing at all while nobody looks.
"""
