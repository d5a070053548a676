"""The dashboard: a live page of the pool, and a page of the API. In reading order:

    rates.py          cumulative counts of the last seconds -> rates and percentiles
    status_client.py  asks the supervisor for the pool's status
    snapshot.py       status, counters and flight records -> one JSON object for the page
    sampler.py        gathers the inputs of a snapshot
    broadcaster.py    one snapshot a second, shared by all viewers
    sse.py            GET /events: the snapshots as server-sent events
    assets.py         the files beside this one: HTML, CSS and JavaScript as they are, no build
    routes.py         /, /events, /docs, /openapi.json and the files

Nothing here runs for an infer request, and nothing at all while nobody views the page.
"""
