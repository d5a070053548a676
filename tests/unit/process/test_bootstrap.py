"""The first steps of a child: its prints are seen at once, and SIGTERM never ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

PRINTS = """
import os, signal
from batchpool.process import bootstrap

bootstrap.print_by_lines()
print("a line")
print("another")
print("a part", end="")
os.kill(os.getpid(), signal.SIGKILL)
"""

AT_THE_END = """
import atexit, os, signal, sys
from batchpool.process import bootstrap

class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGTERM):
        kill(pid, number)

bootstrap.outlast_sigterm()
atexit.register(lambda: print("ignored:", signal.getsignal(signal.SIGTERM) is signal.SIG_IGN))
sys.late = Late()  # is there until Python has taken its signal handlers away
os.kill(os.getpid(), signal.SIGTERM)
file = open(FILE, "w")
file.write("not flushed")
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_what_is_printed_is_written_line_by_line() -> None:
    done = run(PRINTS)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "a line\nanother\n")


def test_sigterm_to_the_group_does_not_end_a_worker_before_its_files_are_flushed(
    tmp_path: object,
) -> None:
    done = run(AT_THE_END.replace("FILE", repr(f"{tmp_path}/rows")))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "ignored: False\n", "what a user's handlers start can be ended"
    with open(f"{tmp_path}/rows") as file:
        assert file.read() == "not flushed"


LEAVES = """
import atexit, os, sys
from batchpool.process.bootstrap import leave

class TakenApart:
    def __del__(self, write=os.write):
        write(2, b"taken apart")

sys.kept = TakenApart()
atexit.register(print, "at the end", end="")
print("before it", end=", ")
BEFORE
leave(7)
"""


def test_a_process_that_leaves_writes_its_output_and_takes_nothing_apart() -> None:
    done = run(LEAVES.replace("BEFORE", ""))
    assert (done.returncode, done.stdout, done.stderr) == (7, "before it, at the end", "")


def test_a_process_leaves_also_where_nothing_can_be_written() -> None:
    for lost in ("os.close(1)", "sys.stdout.close()", "sys.stdout = sys.stderr = None"):
        done = run(LEAVES.replace("BEFORE", lost))
        assert done.returncode == 7, (lost, done.stderr)


STANDS_BACK = """
import os, threading
from batchpool.process import bootstrap

def shown():
    print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0) == os.SCHED_BATCH)

bootstrap.stand_back(0)
before = os.getpriority(os.PRIO_PROCESS, 0)
bootstrap.stand_back(3)
print(before)
shown()
thread = threading.Thread(target=shown)
thread.start()
thread.join()
"""


def test_a_process_that_stands_back_does_so_with_its_threads() -> None:
    before, *shown = run(STANDS_BACK).stdout.splitlines()
    expected = f"{min(19, int(before) + 3)} True"
    assert shown == [expected] * 2
