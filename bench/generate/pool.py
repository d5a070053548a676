"""A pool with CausalLM, asked by streams of a local client or by event streams over HTTP."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import batchpool as bp
from bench.generate.answers import Answer
from bench.generate.bare import options
from bench.generate.loads import Load, Request
from bench.generate.sending import parameters, sent
from bench.support.children import Child
from bench.support.serving import serving

_MODEL = "story"
_TIMEOUT_S = 600.0
_SENDERS = 4
_LEAD_S = 0.5  # until all senders have read their requests


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
                    _MODEL, prompt=request.prompt, parameters=parameters(request),
                    timeout_s=_TIMEOUT_S,
                )  # fmt: skip
                async with stream:
                    while (tokens := await stream.next_tokens()) is not None:
                        answer.add(tokens.tolist(), time.perf_counter())

            return await sent(load, ask)


class Http(Pool):
    """Event streams, from several processes, each with a keep-alive connection for each request
    under way."""

    def __init__(self, folder: Path, device: str, slots: int, load: Load) -> None:
        super().__init__(folder, device, slots, load)
        # All but those of the worker, the batcher, the front ends.
        senders = max(1, min(_SENDERS, (os.cpu_count() or 1) // 4))
        port, path = str(self._pool.port), f"/v2/models/{_MODEL}/generate_stream"
        self._senders = [Child("bench.generate.http_sender", port, path) for _ in range(senders)]

    def close(self) -> None:
        for sender in self._senders:
            sender.dismiss()
        super().close()

    def run(self, load: Load) -> list[Answer]:
        n = len(self._senders)
        begin_s = time.perf_counter() + _LEAD_S
        for number, sender in enumerate(self._senders):
            sender.tell(
                "send",
                requests=[asdict(each) for each in load.requests[number::n]],
                at_once=-(-load.at_once // n),
                due_s=load.due_s[number::n],
                begin_s=begin_s,
            )
        found = [sender.hear()["answers"] for sender in self._senders]
        return [Answer(*found[at % n][at // n]) for at in range(len(load.requests))]
