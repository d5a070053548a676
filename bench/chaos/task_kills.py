"""Tasks through everything that may die: each that was accepted ends once, and right.

    python -m bench.chaos.task_kills [--tasks 20000] [--cells kills,torn,stop,reload,disk]
        [--seed N] [--save FILE.json]

kills    SIGKILL at random moments, in random order, to the task process, worker, batcher, a front
         end and now and then the supervisor, while tasks are submitted and collected
torn     SIGKILL to all processes at once; the log of the database gets a torn end; start
stop     SIGTERM with half of the tasks queued; start
reload   another width of rows while a twentieth is queued, 400 at least: dead letters; the width
         from before, and a replay
disk     a file system of 3 MiB and a slow model, with a fifth of the tasks, 4,000 at least: some
         are refused with 507, those that were accepted end

Exit status 1, with a list, if an accepted task did not end, ended twice, was lost or has a wrong
result, or fewer than 99.9 % of them are done.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.chaos.task_load import (
    TaskAccount,
    collect_all,
    replayed_tags,
    submit_all,
    submit_and_collect,
)
from bench.chaos.task_pool import FAST, SLOW, WIDER, TaskPool, task_pool
from bench.support.machine import percentile, report

DONE_SHARE = 0.999
CONNECTIONS = 32
WINDOW = 2000
_ROUND = ("tasks", "worker", "batcher", "frontend")
_SUPERVISOR_EVERY = 5  # rounds
_PAUSE_S = (0.05, 0.6)
_LOG_HEAD, _FRAME_HEAD = 32, 24  # bytes, of SQLite's write-ahead log

Row = dict[str, Any]


class Kills(threading.Thread):
    """SIGKILL to one process after another until `stop`. counts: of each kind."""

    def __init__(self, pool: TaskPool, rng: random.Random) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.fault = ""
        self._pool = pool
        self._rng = rng
        self._over = threading.Event()

    def run(self) -> None:
        rounds = 0
        while not self._over.is_set():
            rounds += 1
            for kind in self._rng.sample(_ROUND, len(_ROUND)):
                if self._over.wait(self._rng.uniform(*_PAUSE_S)):
                    return
                self._kill(kind)
            if rounds % _SUPERVISOR_EVERY == 0:
                self._kill("supervisor")
                try:
                    self._pool.start()
                except SystemExit as exc:
                    self.fault = str(exc)
                    return

    def _kill(self, kind: str) -> None:
        pids = self._pool.pids(kind)
        if pids:
            os.kill(self._rng.choice(pids), signal.SIGKILL)
            self.counts[kind] += 1

    def stop(self) -> None:
        self._over.set()
        self.join()


def judged(pool: TaskPool, account: TaskAccount, n: int) -> tuple[Row, list[str]]:
    """The row of a cell, once the pool is stopped, and what was violated."""
    states, ends = pool.states(), account.ends
    times_s = account.took_s or [0.0]
    row = {
        "accepted": len(account.paths),
        "ends": dict(ends.most_common()),
        "sent again after": dict(account.again.most_common()),
        "in the store": states,
        "p50, p99, most, s": [round(percentile(times_s, at), 2) for at in (0.5, 0.99, 1.0)],
    }
    faults = [f"{n} tasks ended: {end}" for end, n in ends.items() if end in ("WRONG", "LOST")]
    faults += [
        f"{states[name]} tasks are {name}" for name in ("queued", "running") if name in states
    ]
    if ends.total() != n:
        faults.append(f"{n} tasks were sent, and {ends.total()} ended")
    if sum(states.values()) != len(account.paths):
        faults.append(f"{len(account.paths)} were accepted, the store has {sum(states.values())}")
    if ends["right"] < DONE_SHARE * len(account.paths):
        faults.append(f"only {ends['right']} of {len(account.paths)} are done")
    return row, faults


def kills(n: int, rng: random.Random) -> tuple[Row, list[str]]:
    """Every kind of process dies over and over."""
    with task_pool() as pool:
        pool.configure(FAST, task_attempts=5)
        pool.start()
        killer = Kills(pool, rng)
        killer.start()
        begun_s = time.monotonic()
        try:
            account = asyncio.run(submit_and_collect(pool.port, range(n), CONNECTIONS, WINDOW))
        finally:
            killer.stop()
        took_s = time.monotonic() - begun_s
        pool.start()
        pool.stop()
        row, faults = judged(pool, account, n)
    row = {"kills": dict(killer.counts), "seconds": round(took_s, 1), **row}
    return row, faults + ([killer.fault] if killer.fault else [])


def torn(n: int, rng: random.Random) -> tuple[Row, list[str]]:
    """All processes at once, and the beginning of a commit that never was."""
    with task_pool() as pool:
        pool.configure(SLOW)
        pool.start()
        account = asyncio.run(submit_all(pool.port, range(n), CONNECTIONS))
        pool.kill_all()
        frames = tear(pool.store / "tasks.db-wal", rng)
        pool.configure(FAST)
        pool.start()
        asyncio.run(collect_all(pool.port, account, CONNECTIONS))
        pool.stop()
        row, faults = judged(pool, account, n)
    return {"whole frames of the log": frames, **row}, faults


def tear(log: Path, rng: random.Random) -> int:
    """Write the beginning of a commit behind the last frame of a database's log, as a power cut in
    the middle of a write leaves it. The number of whole frames before it."""
    raw = log.read_bytes()
    page = int.from_bytes(raw[8:12])
    salts, frame = raw[16:24], _FRAME_HEAD + page
    at = _LOG_HEAD
    while raw[at + 8 : at + 16] == salts and at + frame <= len(raw):
        at += frame
    torn_frame = raw[at - frame : at - frame + _FRAME_HEAD] + rng.randbytes(page // 2)
    with log.open("r+b") as file:
        file.seek(at)
        file.write(torn_frame)
    return (at - _LOG_HEAD) // frame


def stop(n: int, rng: random.Random) -> tuple[Row, list[str]]:
    """SIGTERM while most are queued."""
    n //= 2
    with task_pool() as pool:
        pool.configure(SLOW, drain_s=10)
        pool.start()
        account = asyncio.run(submit_all(pool.port, range(n), CONNECTIONS))
        status, took_s = pool.stop()
        queued = pool.states()
        pool.configure(FAST)
        pool.start()
        asyncio.run(collect_all(pool.port, account, CONNECTIONS))
        pool.stop()
        row, faults = judged(pool, account, n)
    if status or took_s > 15:
        faults.append(f"SIGTERM ended it with status {status} after {took_s:.1f} s")
    return {"at the stop": queued, "stopped after, s": round(took_s, 2), **row}, faults


def reload(n: int, rng: random.Random) -> tuple[Row, list[str]]:
    """Tensors that do not fit what is queued, and back."""
    n = max(400, n // 20)
    with task_pool() as pool:
        pool.configure(SLOW)
        pool.start()
        account = asyncio.run(submit_all(pool.port, range(n), CONNECTIONS))
        pool.configure(WIDER)
        pool.command("reload", str(pool.config))
        asyncio.run(collect_all(pool.port, account, CONNECTIONS))
        pool.configure(FAST)
        pool.command("reload", str(pool.config))
        replayed = pool.command("dlq", "replay", "--all", "--config", str(pool.config))
        ids = [word for word in replayed.split() if word.startswith("t_")]
        tags = asyncio.run(replayed_tags(pool.port, ids))
        pool.stop()
        states, ends = pool.states(), account.ends
    faults = [f"{n} ended: {end}" for end, n in ends.items() if end in ("WRONG", "LOST")]
    if sorted(tags) != sorted(account.failed) or not tags:
        faults.append(f"{len(account.failed)} failed, {len(tags)} were replayed, not all right")
    if ends.total() != n:
        faults.append(f"{n} tasks were sent, and {ends.total()} ended")
    return {"ends": dict(ends), "replayed": len(ids), "in the store": states}, faults


def disk(n: int, rng: random.Random) -> tuple[Row, list[str]]:
    """A small file system: some are refused for a while, none is lost."""
    if shutil.which("unshare") is None or os.getuid():
        return {"left out": "it takes root and unshare"}, []
    n = max(4000, n // 5)
    script = 'mount -t tmpfs -o size=3m tmpfs "$0" && exec "$@"'
    with task_pool() as pool:
        pool.wrapper = ["unshare", "-m", "sh", "-c", script, str(pool.store.parent)]
        pool.configure(SLOW, task_collect_grace_s=0, task_evict_on_read=True, max_batch=64)
        pool.start()
        account = asyncio.run(submit_and_collect(pool.port, range(n), CONNECTIONS, WINDOW * 10))
        pool.stop()
    full = account.again["507"]
    row = {"refused with 507": full, "ends": dict(account.ends)}
    faults = [] if account.ends == Counter(right=n) else [f"{n} sent, {dict(account.ends)}"]
    if not full:
        faults.append("the disk was never full")
    return row, faults


CELLS: dict[str, Callable[[int, random.Random], tuple[Row, list[str]]]] = {
    "kills": kills, "torn": torn, "stop": stop, "reload": reload, "disk": disk,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=20_000, metavar="N")
    parser.add_argument("--cells", default=",".join(CELLS), metavar="NAME,...")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", metavar="FILE.json")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # and the pool with it
    rows: dict[str, Any] = {}
    violated: list[str] = []
    for name in args.cells.split(","):
        rows[name], faults = CELLS[name](args.tasks, random.Random(args.seed))
        violated += [f"{name}: {fault}" for fault in faults]
        print(f"{name}: {rows[name]}", flush=True)
    rows["violated"] = violated
    report(f"{args.tasks} tasks through everything that may die", rows, args.save)
    for fault in violated:
        print(f"  VIOLATED: {fault}")
    sys.exit(1 if violated else 0)


if __name__ == "__main__":
    main()
