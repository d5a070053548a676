"""A pool with CausalLM, asked by streams of a local client or by event streams over HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import batchpool as bp
from bench.generate.answers import Answer
from bench.generate.bare import options
from bench.generate.loads import Load, Request
from bench.support.serving import serving

_MODEL = "story"
_TIMEOUT_S = 600.0

Ask = Callable[[Request, Answer], Awaitable[None]]


class Pool:
    """A running pool; `run` sends a load from one event loop."""

    def __init__(self, folder: Path, device: str, slots: int, load: Load) -> None:
        flags = ["--devices", "cpu" if device == "cpu" else "0", "--max-batch", str(slots)]
        for key, value in options(load).items():
            flags += ["--option", f"{key}={value}"]
        self._serving = serving([f"{_MODEL}=causal_lm:{folder}"], *flags)
        self._pool = self._serving.__enter__()

    def close(self) -> None:
        self._serving.__exit__(None, None, None)

    def run(self, load: Load) -> list[Answer]:
        return asyncio.run(self._run(load))

    async def _run(self, load: Load) -> list[Answer]:
        raise NotImplementedError


class Local(Pool):
    """Streams of one client on the pool's socket."""

    async def _run(self, load: Load) -> list[Answer]:
        async with bp.AsyncClient(self._pool.socket) as client:

            async def ask(request: Request, answer: Answer) -> None:
                stream: Any = client.stream(  # type: ignore[attr-defined, unused-ignore]
                    _MODEL, prompt=request.prompt, parameters=_parameters(request),
                    timeout_s=_TIMEOUT_S,
                )  # fmt: skip
                async with stream:
                    while (tokens := await stream.next_tokens()) is not None:
                        answer.add(tokens.tolist(), time.perf_counter())

            return await _sent(load, ask)


class Http(Pool):
    """Event streams of one keep-alive connection a request under way."""

    async def _run(self, load: Load) -> list[Answer]:
        import httpx

        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        url = f"http://127.0.0.1:{self._pool.port}/v2/models/{_MODEL}/generate_stream"
        async with httpx.AsyncClient(limits=limits, timeout=_TIMEOUT_S) as client:

            async def ask(request: Request, answer: Answer) -> None:
                body = {"prompt": request.prompt, "parameters": _parameters(request)}
                async with client.stream("POST", url, json=body) as response:
                    if response.status_code != 200:
                        raise SystemExit(f"{response.status_code}: {await response.aread()!r}")
                    async for line in response.aiter_lines():
                        if not line.startswith("data: "):
                            continue
                        event = json.loads(line.removeprefix("data: "))
                        if "error" in event:
                            raise SystemExit(f"a stream ended with {event['error']}")
                        answer.add(event["token"], time.perf_counter())

            return await _sent(load, ask)


def _parameters(request: Request) -> dict[str, Any]:
    return {"max_tokens": request.tokens, "ignore_eos": True}


async def _sent(load: Load, ask: Ask) -> list[Answer]:
    """The answers to all requests of a load, each asked for when it is due."""
    answers: list[Answer] = []
    under_way = asyncio.Semaphore(load.at_once or len(load.requests))
    begun_s = time.perf_counter()

    async def one(request: Request, answer: Answer) -> None:
        await ask(request, answer)
        under_way.release()

    async with asyncio.TaskGroup() as tasks:
        for number, request in enumerate(load.requests):
            if load.due_s:
                await asyncio.sleep(begun_s + load.due_s[number] - time.perf_counter())
            await under_way.acquire()
            answers.append(Answer(time.perf_counter()))
            tasks.create_task(one(request, answers[-1]))
    return answers
