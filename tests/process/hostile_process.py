"""One process of a hostile kind (`bench/hostile/`) beside a pool under test."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from bench.hostile.kind import ROUND
from bench.hostile.stranger import ROUNDS_TOLD
from tests.process.pool_under_test import PATIENCE_S, ROOT

LOOK_S = 0.01  # between two looks at the pool beside one, which cost the pool time
ROUND_S = 0.25  # there are dozens of kinds, and the load beside them takes all processors


class HostileProcess:
    """A hostile process that has begun. pid: its own. account: what it said at its end, with its
    status; empty before."""

    def __init__(self, process: subprocess.Popen[bytes], lines: IO[bytes]) -> None:
        self.pid = process.pid
        self.account: dict[str, Any] = {}
        self._lines = lines
        self._rounds = 0
        self._told_s = time.monotonic()
        self._begun_s = self._told_s

    def has_done(self, rounds: int) -> bool:
        """True once it has done so many rounds, at most ROUNDS_TOLD; does not wait.

        Raises AssertionError where a round takes longer than PATIENCE_S.
        """
        assert rounds <= ROUNDS_TOLD
        while self._rounds < rounds and select.select([self._lines], [], [], 0)[0]:
            line = self._lines.readline()
            assert line, "the hostile process has ended"
            self._rounds, self._told_s = json.loads(line), time.monotonic()
        waited_s = time.monotonic() - self._told_s
        assert self._rounds >= rounds or waited_s < PATIENCE_S, f"no round in {waited_s:g} s"
        return self._rounds >= rounds

    def is_through(self) -> bool:
        """True once it has done a round, and more of them where it was refused at once."""
        return self.has_done(1) and time.monotonic() - self._begun_s > 2 * ROUND_S


@contextmanager
def hostile_process(kind: str, where: str, *uid: str, end_s: float) -> Iterator[HostileProcess]:
    """A hostile process, which has begun; afterwards it has its account.

    where: the path of the control socket, or the HTTP port. end_s: how long it may take to end.
    """
    command = [sys.executable, "-m", "bench.hostile.stranger", kind, where, "affine", *uid]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, ROUND: str(ROUND_S)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        hostile = HostileProcess(process, process.stdout)
        yield hostile
        out, _ = process.communicate(timeout=end_s)
        hostile.account.update(json.loads(out.splitlines()[-1]), status=process.returncode)
    finally:
        process.kill()
        process.wait()
