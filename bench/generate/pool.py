"""A pool with CausalLM, asked by streams of local clients or by event streams over HTTP."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.generate.answers import Answer
from bench.generate.loads import Load
from bench.generate.sending import MODEL
from bench.support.children import Child
from bench.support.serving import serving

_SENDERS = 4
_LEAD_S = 0.5  # until all senders have read their requests


class Pool:
    """A running pool, and processes that send their parts of a load to it."""

    def __init__(self, folder: Path, device: str, slots: int, options: dict[str, Any]) -> None:
        flags = ["--devices", "cpu" if device == "cpu" else "0", "--max-batch", str(slots)]
        for key, value in options.items():
            flags += ["--option", f"{key}={json.dumps(value)}"]
        self._serving = serving([f"{MODEL}=causal_lm:{folder}"], *flags)
        self._pool = self._serving.__enter__()
        # All but those of the worker, the batcher, the front ends.
        senders = max(1, min(_SENDERS, (os.cpu_count() or 1) // 4))
        self._senders = [Child(*self._sender()) for _ in range(senders)]

    def _sender(self) -> tuple[str, ...]:
        """The module of a sender and its arguments."""
        raise NotImplementedError

    def close(self) -> None:
        for sender in self._senders:
            sender.dismiss()
        self._serving.__exit__(None, None, None)

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


class Local(Pool):
    """Streams of a client on the pool's socket, in each sender."""

    def _sender(self) -> tuple[str, ...]:
        return "bench.generate.local_sender", self._pool.socket


class Http(Pool):
    """Event streams on keep-alive connections, one for each request under way."""

    def _sender(self) -> tuple[str, ...]:
        path = f"/v2/models/{MODEL}/generate_stream"
        return "bench.generate.http_sender", str(self._pool.port), path
