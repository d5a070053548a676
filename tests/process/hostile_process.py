"""One process of a hostile kind (`bench/hostile/`) beside a pool under test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.process.pool_under_test import ROOT


@contextmanager
def hostile_process(kind: str, where: str, *uid: str, end_s: float) -> Iterator[dict[str, Any]]:
    """A hostile process, which has begun; afterwards its account is in what was yielded.

    where: the path of the control socket, or the HTTP port. end_s: how long it may take to end.
    """
    command = [sys.executable, "-m", "bench.hostile.stranger", kind, where, "affine", *uid]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    account: dict[str, Any] = {"pid": process.pid}
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield account
        out, _ = process.communicate(timeout=end_s)
        account.update(json.loads(out), status=process.returncode)
    finally:
        process.kill()
        process.wait()
