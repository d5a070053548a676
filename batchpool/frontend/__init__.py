"""The HTTP front end of a pool. Packages from low to high; a module imports downwards only:

    http/       one HTTP message: connections, heads, bodies, responses, access log, metrics
    service/    the models of a session as endpoints, readiness, metadata, statistics, repository
    fast/       infer requests answered inside the HTTP protocol
    dashboard/  the live page
    asgi/       the Starlette application, for every other request
    server      uvicorn on an inherited socket, with a stop that ends in time
    process     the process

Reading order, along the path of an infer request:

    service/endpoint.py       rows in, output rows out, without HTTP
    http/request_head.py      the facts of a request's headers
    http/gate.py              who sent it, and whether it may come in
    http/response.py          a response as a value; every error as JSON
    service/http_endpoint.py  the steps of one infer request over HTTP
    fast/protocol.py          the fast path through those steps, on one connection
    fast/request.py           one request of the fast path, and the writing of its response
    http/connection.py        the limits of a connection
    asgi/infer.py             the ASGI path through the same steps
    asgi/app.py               the routes; asgi/protocol_routes.py: those of the protocol
    service/pool_view.py      the state that all connections share
    process.py                the parts put together
"""
