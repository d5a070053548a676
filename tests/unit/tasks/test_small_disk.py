"""The store on a file system that is as small as a few thousand tasks: full, and empty again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_MOUNT = 'mount -t tmpfs -o size=3m tmpfs "$0" && exec "$@"'
_UNSHARED = ("unshare", "-rm", "sh", "-c")
_FILL_AND_EMPTY = """
import sys
from pathlib import Path
from batchpool.tasks.record import *
from batchpool.tasks.sqlite import SqliteStore
from batchpool.tasks.committer import Committer
import asyncio, os

limits = StoreLimits(10**6, 2**30, 1000, 0, evict_on_read=True)
now = [1]

def new(number):
    identifier = task_id(1, number.to_bytes(TOKEN_BYTES, "big"))
    return NewTask(identifier, "m", 1, bytes(6000), b"", "me", "", 1, 10**9)

async def main():
    store = SqliteStore(Path(sys.argv[1]) / "tasks", limits)
    committer = Committer(store, lambda: now[0], lambda seconds: None)
    n, full = 0, 0
    while not full:  # each of them is claimed as soon as it is there, as far as there is room
        puts = await committer.ask_each("put", [new(n + i) for i in range(50)])
        full = sum(getattr(p, "outcome", None) is not PutOutcome.NEW for p in puts)
        n += 50 - full
    answer = TaskAnswer(200, (), bytes(12000))
    done, claimed, rounds = set(), [], 0
    while len(done) < n:
        rounds += 1
        assert rounds < 600, f"{len(done)} of {n} tasks have ended, and no more do"
        if not claimed:
            (claimed,) = await committer.ask_each("claim", [Want("m", 64, 2**30)])
            claimed = list(claimed.tasks) if isinstance(claimed, Claimed) else []
        ends = [Ended(t.id, t.claim, TaskState.DONE, answer) for t in claimed]
        found = await committer.ask_each("finish", ends)
        over = [t.id for t, end in zip(claimed, found) if end is True]
        claimed = [t for t, end in zip(claimed, found) if end is not True]
        done.update(over)
        read = list(done) if rounds % 8 == 0 else over  # those that met a full disk, once more
        await committer.ask_each("mark_read", read)
        now[0] += 1
        try:
            await committer.run(lambda store, ms: store.sweep(ms))
        except Exception as exc:
            print("swept not:", exc, file=sys.stderr)
    assert store.counts().letters == 0
    print(n, rounds)
    await committer.close()

asyncio.run(main())
"""


def test_a_full_disk_lets_everything_end_that_is_on_it(tmp_path: Path) -> None:
    """Results are larger than inputs and go once they are read: there is room for few at a time."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not there")
    command = [*_UNSHARED, _MOUNT, str(tmp_path)]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may mount nothing")
    found = subprocess.run(
        [*command, sys.executable, "-c", _FILL_AND_EMPTY, str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-3000:]
    assert int(found.stdout.split()[0]) > 100
