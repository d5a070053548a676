"""An open loop of requests: sent at their intended times whatever becomes of the answers.

`offer` starts processes of bench/load/open_sender.py, tells them when to begin once all of them are
connected, and joins what they saw.

How late requests left is told too (p50, p99, most): where more than one in a hundred left over
`LATE_MS` late, the load was not the one that was meant, and its figures are INVALID. Over
HTTP a request also leaves late when every connection is busy, so there must be more of them
than the pool has slots: then the pool refuses before the sender runs out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

RIGHT, REFUSED, WRONG, FAILED, LOST = range(5)
GRACE_S = 40.0  # beyond the last send; the pool's own deadline is 30 s
LATE_MS = 10.0  # the 99th percentile of how late requests leave; above it a load is INVALID
_LEAD_NS = 100_000_000  # from the word to the common start
_SLOTS = 4096  # of a model, over all front ends, unless the pool is told otherwise

Phase = tuple[float, float]  # requests per second over all processes, seconds


@dataclass(frozen=True)
class Plan:
    """The load that one process offers. found: the file for its results; connections: those that it
    keeps over HTTP."""

    phases: Sequence[Phase]
    number: int
    processes: int
    seed: int
    found: str
    connections: int


@dataclass
class Load:
    """The outcomes of all requests, by their intended times.

    at_s: since the start; took_ms: from then to the answer, any answer; what: RIGHT, ...
    behind_ms: how late requests were sent.
    """

    at_s: npt.NDArray[Any]
    took_ms: npt.NDArray[Any]
    what: npt.NDArray[Any]
    behind_ms: npt.NDArray[Any]

    def verdict(self, start_s: float = 0.0, stop_s: float = float("inf")) -> str:
        """ "as intended", or why the figures of this time are INVALID."""
        late = lateness(self.behind_ms[(self.at_s >= start_s) & (self.at_s < stop_s)])
        if not late.is_invalid:
            return "as intended"
        return (
            f"INVALID: requests left late, p50 {late.p50_ms:.1f}, p99 {late.p99_ms:.1f}, "
            f"most {late.most_ms:.1f} ms; p99 may be {LATE_MS:g}"
        )

    def figures(self, start_s: float = 0.0, stop_s: float = float("inf")) -> dict[str, float]:
        """Of the requests meant to be sent in this time. invalid: 1 where they left late."""
        of = (self.at_s >= start_s) & (self.at_s < stop_s)
        late = lateness(self.behind_ms[of])
        right = of & (self.what == RIGHT)
        took = self.took_ms[right]
        since_sent_ms = (
            float(np.quantile((self.took_ms - self.behind_ms)[right], 0.99))
            if len(took)
            else float("nan")
        )
        span_s = min(stop_s, float(self.at_s.max(initial=0.0))) - start_s
        p50_ms, p99_ms, most_ms = (
            np.quantile(took, (0.5, 0.99, 1.0)).tolist() if len(took) else [float("nan")] * 3
        )
        return {
            "sent": int(of.sum()),
            "right": int(right.sum()),
            "right_per_s": int(right.sum()) / max(span_s, 1e-9),
            "p50_ms": p50_ms,
            "p99_ms": p99_ms,
            "most_ms": most_ms,
            "p99_since_sent_ms": since_sent_ms,
            "refused": int((of & (self.what == REFUSED)).sum()),
            "lost": int((of & (self.what > REFUSED)).sum()),
            "behind_p50_ms": late.p50_ms,
            "behind_p99_ms": late.p99_ms,
            "behind_most_ms": late.most_ms,
            "invalid": float(late.is_invalid),
        }


@dataclass(frozen=True)
class Lateness:
    """The delays from the intended times of requests to their sending."""

    p50_ms: float
    p99_ms: float
    most_ms: float

    @property
    def is_invalid(self) -> bool:
        return self.p99_ms > LATE_MS


def lateness(behind_ms: npt.NDArray[Any]) -> Lateness:
    """Of these requests; of none, 0."""
    if not len(behind_ms):
        return Lateness(0.0, 0.0, 0.0)
    return Lateness(*np.quantile(behind_ms, (0.5, 0.99, 1.0)).tolist())


class _Process:
    """A sender. It is gone when its context ends."""

    def __init__(self, transport: str, where: str, plan: Plan) -> None:
        command = [
            sys.executable,
            "-m",
            "bench.load.open_sender",
            transport,
            where,
            json.dumps(asdict(plan)),
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._plan = plan

    def await_ready(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError(f"a sender ended with {self._process.wait()}")

    def start(self, start_ns: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{start_ns}\n")
        self._process.stdin.flush()

    def found(self) -> dict[str, npt.NDArray[Any]]:
        """The results of the process, once it has ended."""
        longest_s = sum(seconds for _, seconds in self._plan.phases) + 2 * GRACE_S
        if status := self._process.wait(longest_s):
            raise RuntimeError(f"a sender ended with {status}")
        with np.load(self._plan.found) as found:
            return dict(found)

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def offer(
    transport: str,
    where: str,
    phases: Sequence[Phase],
    processes: int,
    seed: int = 1,
    connections: int = _SLOTS + _SLOTS // 2,
) -> Load:
    """Start the processes, wait for them, and join what they saw.

    connections: over all, more than the pool has slots. Says so on stderr where requests left
    late: such a load is INVALID.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        plans = [
            Plan(phases, i, processes, seed, f"{folder}/{i}.npz", connections // processes)
            for i in range(processes)
        ]
        senders = [stack.enter_context(_Process(transport, where, plan)) for plan in plans]
        for sender in senders:
            sender.await_ready()
        start_ns = time.monotonic_ns() + _LEAD_NS
        for sender in senders:
            sender.start(start_ns)
        parts = [sender.found() for sender in senders]
        joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    load = Load(
        (joined["due"] - start_ns) / 1e9,
        joined["took"] / 1e6,
        joined["what"],
        joined["behind"] / 1e6,
    )
    if (load.what == WRONG).any():
        raise RuntimeError("wrong answer")
    if (verdict := load.verdict()) != "as intended":
        print(f"  {verdict}", file=sys.stderr)
    return load
