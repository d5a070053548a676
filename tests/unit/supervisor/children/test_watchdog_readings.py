"""Debuggers and waits for a processor, read from /proc of real processes."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from batchpool.supervisor.children.watchdog import is_traced, waited_ns
from tests.unit.shm.scarcity import no_descriptors

PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
PATIENCE_S = 60.0


def test_a_tracer_is_found() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            assert not is_traced(process.pid)
            if libc.ptrace(PTRACE_SEIZE, process.pid, None, None) != 0:
                pytest.skip(f"no ptrace here: {os.strerror(ctypes.get_errno())}")
            assert is_traced(process.pid)
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            libc.ptrace(PTRACE_DETACH, process.pid, None, None)
            assert not is_traced(process.pid)
        finally:
            process.kill()
    assert not is_traced(process.pid), "there is none any more"
    assert waited_ns(process.pid) == 0


def test_a_wait_for_a_processor_is_seen() -> None:
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel does not count it")
    circle = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    processor = min(os.sched_getaffinity(0))
    command = [sys.executable, "-c", circle, str(processor)]
    with subprocess.Popen(command) as one, subprocess.Popen(command) as other:
        try:
            give_up_s = time.monotonic() + PATIENCE_S
            before = waited_ns(one.pid)
            while waited_ns(one.pid) < before + 200_000_000:
                assert time.monotonic() < give_up_s
                time.sleep(0.01)
            one.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, one.pid, os.WSTOPPED | os.WNOWAIT)
            stopped = waited_ns(one.pid)
            time.sleep(0.1)  # in which one that runs would have waited
            assert waited_ns(one.pid) == stopped
        finally:
            one.kill()
            other.kill()


def test_without_a_descriptor_to_look_with_nothing_is_known() -> None:
    with no_descriptors():
        assert (is_traced(os.getpid()), waited_ns(os.getpid())) == (False, 0)
    with no_descriptors(but=1):
        assert waited_ns(os.getpid()) >= 0
