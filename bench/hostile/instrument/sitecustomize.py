"""Measures the turns of the event loop in a pool's front ends and task process.

Python imports a module of this name at its start, where the folder stands in PYTHONPATH, as
`bench/hostile/turns.py` has it. A timer of the loop comes every millisecond. What it is late by is
how long no other connection had its turn. On a busy machine a part of that is waiting for a
processor; so no more of it is told than the CPU time that all threads of the process used
meanwhile: the turns of the loop, and the work of others that may have held Python's lock. Times
from LEAST_S on go into the file FOLDER/PID, a line each:

    CLOCK_MONOTONIC at the end in s     time held in s     CPU time of the loop's thread in s

STACKS_S: after so many seconds of a turn all stacks are written to FOLDER/PID.stacks.
"""

from __future__ import annotations

import os
import sys

FOLDER, STACKS_S = "BENCH_TURNS", "BENCH_TURNS_STACKS_S"
LEAST_S = 0.0025
_EVERY_S = 0.001
_MEASURED = ("batchpool.frontend", "batchpool.tasks")


def _measure(folder: str) -> None:
    import faulthandler
    import time
    from asyncio import AbstractEventLoop

    import uvloop

    new_event_loop = uvloop.new_event_loop
    stacks_s = float(os.environ.get(STACKS_S, "0"))

    def measured_loop() -> AbstractEventLoop:
        loop: AbstractEventLoop = new_event_loop()
        sink = open(f"{folder}/{os.getpid()}", "w", buffering=1)  # noqa: SIM115 for its life
        stacks = open(f"{folder}/{os.getpid()}.stacks", "w")  # noqa: SIM115
        looked_s = looked_cpu_s = looked_all_s = 0.0

        def look() -> None:
            nonlocal looked_s, looked_cpu_s, looked_all_s
            now_s, cpu_s, all_s = time.monotonic(), time.thread_time(), time.process_time()
            held_s = min(now_s - looked_s - _EVERY_S, all_s - looked_all_s)
            if looked_s and held_s >= LEAST_S:
                sink.write(f"{now_s:.4f} {held_s:.5f} {cpu_s - looked_cpu_s:.5f}\n")
            looked_s, looked_cpu_s, looked_all_s = now_s, cpu_s, all_s
            if stacks_s:
                faulthandler.dump_traceback_later(stacks_s, file=stacks)
            loop.call_later(_EVERY_S, look)

        loop.call_soon(look)
        return loop

    uvloop.new_event_loop = measured_loop  # type: ignore[assignment]


if FOLDER in os.environ and any(name in sys.orig_argv for name in _MEASURED):
    _measure(os.environ[FOLDER])
