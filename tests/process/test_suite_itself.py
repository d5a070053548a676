"""The suite itself: under nohup, where SIGHUP is ignored, and killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.house.tree import ROOT
from tests.process.pool_under_test import is_alive, until

THOSE_THAT_SEND_IT = (
    "tests/unit/supervisor/host/test_signals.py",
    "tests/unit/cli/test_cli.py",
    "tests/process/test_operations.py::test_reloads_that_wait_are_refused_or_cut_off",
)


@pytest.mark.long
def test_the_tests_of_hangups_pass_where_hangups_are_ignored() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", ""]
    run = subprocess.run(
        ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *command, *THOSE_THAT_SEND_IT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:]


KILLED_IN_THE_MIDDLE = """
import os, signal
from tests.process.pool_under_test import serving
with serving("Affine") as pool:
    print(*pool.processes(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_a_suite_that_is_killed_leaves_no_process_behind() -> None:
    run = subprocess.run(
        [sys.executable, "-c", KILLED_IN_THE_MIDDLE],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    pids = [int(pid) for pid in run.stdout.split()]
    assert run.returncode == -signal.SIGKILL, run.stderr
    assert len(pids) >= 4
    until(lambda: not any(is_alive(pid) for pid in pids), "the end of the pool", 20)
