"""Streams while their pool's batcher dies, and while the pool is reloaded: gaps between tokens.

    python -m bench.batcher_death [--streams 64] [--kills 5] [--step-ms 2] [--save FILE.json]

A generator makes a token for each of the streams of a local client at even times. In turns nothing
happens for a window, SIGKILL to the batcher begins one, in which the next batcher starts, and one
lasts as long as a reload, in which another worker goes on with all sequences. For all: the longest
gap that any of the streams saw. For the first two: the steps of the worker by its own clock, the
longest time between two of them, and how much of that the worker waited for a core. What is longer
in the windows with a death and is no wait for a core would be a wait of the worker for the batcher.
`tests/process/test_generation.py` shows without a clock that streams need no batcher.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import batchpool as bp
from bench.support.machine import report, spread
from bench.support.paced import step_notes
from bench.support.serving import Served, serving

_MODEL = "paced"
_BATCHER = "batcher"


class _Scene:
    """Streams that run. came_ns: when any of them had something new, one list for each."""

    def __init__(self, served: Served, notes: npt.NDArray[np.int64], streams: int) -> None:
        self._served = served
        self._notes = notes
        self.came_ns: list[list[int]] = [[] for _ in range(streams)]

    async def follow(self, client: Any, number: int) -> None:
        """Read one stream until it is cancelled; every token has to be there."""
        read = 0
        async with client.stream(_MODEL, prompt=[number]) as stream:
            while (tokens := await stream.next_tokens()) is not None:
                self.came_ns[number].append(time.monotonic_ns())
                new, read = range(read, read + len(tokens)), read + len(tokens)
                assert tokens.tolist() == list(new), "a token was lost or came twice"

    async def reload(self) -> dict[str, float]:
        """The figures of a reload."""
        command = [sys.executable, "-m", "batchpool", "reload", "--socket", self._served.socket]
        begun_ns = time.monotonic_ns()
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
        if await process.wait():
            raise SystemExit("the reload failed")
        return {"longest gap of a stream, ms": self._longest_gap(begun_ns, time.monotonic_ns())}

    async def window(self, seconds: float, *, kill: bool) -> dict[str, float]:
        """The figures of the next seconds. kill: the batcher dies at their begin."""
        pid = (await asyncio.to_thread(self._served.pids))[_BATCHER]
        begun_ns = time.monotonic_ns()
        if kill:
            os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(seconds)
        ended_ns = time.monotonic_ns()
        if kill:
            while (await asyncio.to_thread(self._served.pids)).get(_BATCHER, pid) == pid:
                await asyncio.sleep(0.05)
        at_ns, waited_ns = self._notes[self._notes[:, 0] > 0].T
        here = (begun_ns <= at_ns) & (at_ns < ended_ns)
        gaps, waits = np.diff(at_ns[here]), np.diff(waited_ns[here])
        longest = int(gaps.argmax())
        return {
            "steps": float(here.sum()),
            "longest step, ms": gaps[longest] / 1e6,
            "of it a wait for a core, ms": waits[longest] / 1e6,
            "waits for a core, ms in all": waits.sum() / 1e6,
            "longest gap of a stream, ms": self._longest_gap(begun_ns, ended_ns),
        }

    def _longest_gap(self, begun_ns: int, ended_ns: int) -> float:
        longest_ns = 0
        for times in self.came_ns:
            here = [begun_ns, *(at for at in times if begun_ns <= at < ended_ns), ended_ns]
            longest_ns = max(longest_ns, *(b - a for a, b in pairwise(here)))
        return longest_ns / 1e6


async def measure(
    served: Served, notes: npt.NDArray[np.int64], args: argparse.Namespace
) -> dict[str, Any]:
    scene = _Scene(served, notes, args.streams)
    found: dict[str, list[float]] = defaultdict(list)
    async with bp.AsyncClient(served.socket) as client:
        tasks = [
            asyncio.create_task(scene.follow(client, number)) for number in range(args.streams)
        ]
        while not all(scene.came_ns):
            await asyncio.sleep(0.05)
        for _ in range(args.kills):
            figures = {
                "quiet": await scene.window(args.seconds, kill=False),
                "death": await scene.window(args.seconds, kill=True),
                "reload": await scene.reload(),
            }
            for name, window in figures.items():
                for what, value in window.items():
                    found[f"{name}: {what}"].append(value)
        for task in tasks:
            if task.done():
                task.result()  # an error of the stream
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {what: spread(values, 1) for what, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--kills", type=int, default=5, help="and reloads")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a window")
    parser.add_argument("--step-ms", type=float, default=2.0, help="from one step to the next")
    parser.add_argument("--save", help="a JSON file for the figures")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps"
        notes = step_notes(path)
        flags = ["--max-batch", str(args.streams), "--client-slots", str(2 * args.streams)]
        flags += ["--option", f"step_ms={args.step_ms}", "--option", f"notes={path}"]
        with serving([f"{_MODEL}=bench.support.paced:Paced"], *flags, "--frontends", "1") as served:
            rows = asyncio.run(measure(served, notes, args))
        report(f"{args.streams} streams while the batcher dies", rows, args.save)


if __name__ == "__main__":
    main()
