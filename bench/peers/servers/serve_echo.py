"""The references: a body comes back as it came, through uvicorn alone or with Starlette."""

from __future__ import annotations

from typing import Any

import uvicorn
from plan import HOST, PLAN, PORT
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_OCTETS = "application/octet-stream"


async def bare(scope: Any, receive: Any, send: Any) -> None:
    parts = []
    more = True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    body = b"".join(parts)
    headers = [
        (b"content-type", _OCTETS.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def echo(request: Request) -> Response:
    return Response(await request.body(), media_type=_OCTETS)


if __name__ == "__main__":
    app: Any = bare
    if PLAN.variant == "starlette":
        app = Starlette(routes=[Route("/infer", echo, methods=["POST"])])
    uvicorn.run(
        app,
        host=HOST,
        port=PORT,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        backlog=4096,
        access_log=False,
        log_level="warning",
    )
