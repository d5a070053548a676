"""A process that sends its part of a load through a local client and notes when each token came.

    python -m bench.generate.local_sender SOCKET

A child that the run tells what to do.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import batchpool as bp
from bench.generate.answers import Answer
from bench.generate.loads import Load, Request
from bench.generate.sending import MODEL, TIMEOUT_S, obey_loads, parameters, sent


async def send(socket: str, load: Load) -> list[Answer]:
    async with bp.AsyncClient(socket) as client:

        async def ask(request: Request, answer: Answer) -> None:
            stream: Any = client.stream(  # type: ignore[attr-defined, unused-ignore]
                MODEL, prompt=request.prompt, parameters=parameters(request), timeout_s=TIMEOUT_S
            )
            async with stream:
                while (tokens := await stream.next_tokens()) is not None:
                    answer.add(tokens.tolist(), time.perf_counter())

        return await sent(load, ask)


if __name__ == "__main__":
    obey_loads(lambda load: send(sys.argv[1], load))
