"""Which signal asks for what, and who keeps his own way with SIGHUP."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

from batchpool.supervisor.host.signals import Signals, hangups_kept

# In a session with a terminal of its own, which is then closed.
CLOSED_TERMINAL = """
import os, pty, signal, sys, time
from batchpool.supervisor.host.signals import Signals
pid, terminal = pty.fork()
if pid:
    said = os.read(terminal, 100)
    assert said.startswith(b"True"), said
    os.close(terminal)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
signals = Signals()
os.kill(os.getpid(), signal.SIGHUP)
while not (came := signals.take()):
    time.sleep(0.001)
os.write(1, str(came == [("SIGHUP", True)]).encode())
while not (came := signals.take()):
    time.sleep(0.001)
os._exit(0 if came == [("SIGHUP", False)] else 7)
"""
# The same before there are Signals.
CLOSED_EARLY = """
import os, pty, signal, sys, time
from batchpool.supervisor.host.signals import hangups_kept
pid, terminal = pty.fork()
if pid:
    said = os.read(terminal, 100)
    assert said.startswith(b"kept"), said
    os.close(terminal)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
with hangups_kept():
    os.kill(os.getpid(), signal.SIGHUP)
    os.write(1, b"kept")
    while True:
        time.sleep(60)
"""
UNDER_A_TERMINAL = """
import os, pty, sys
pid, terminal = pty.fork()
if pid:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
WITHOUT_DESCRIPTORS = """
import os, signal, time
from batchpool.supervisor.host.signals import Signals
from tests.unit.shm.scarcity import no_descriptors
signals = Signals()
with no_descriptors():
    os.kill(os.getpid(), signal.SIGHUP)
    while not (came := signals.take()):
        time.sleep(0.001)
os._exit(0 if came == [("SIGHUP", True)] else 7)
"""


def test_they_are_taken_in_order_and_given_back() -> None:
    before = {sig: signal.getsignal(sig) for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    signals = Signals()
    try:
        assert signals.take() == []
        for number in (signal.SIGHUP, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert select.select([signals], [], [], 20)[0] == [signals]
        signals.clear()
        assert signals.take() == [("SIGHUP", True), ("SIGTERM", False)]
        assert signals.take() == []
    finally:
        signals.close()
    assert before == {sig: signal.getsignal(sig) for sig in before}


def test_a_sighup_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals = Signals()
    try:
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals.take() == []
    finally:
        signals.close()
        signal.signal(signal.SIGHUP, before)


def test_a_sighup_before_is_kept_and_the_first() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with hangups_kept():
        os.kill(os.getpid(), signal.SIGHUP)
        signals = Signals()
        try:
            assert select.select([signals], [], [], 20)[0] == [signals], "its loop need not wait"
            os.kill(os.getpid(), signal.SIGTERM)
            assert signals.take() == [("SIGHUP", True), ("SIGTERM", False)]
        finally:
            signals.close()
    assert signal.getsignal(signal.SIGHUP) is before


def test_a_sighup_that_is_ignored_is_not_kept() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with hangups_kept():
        os.kill(os.getpid(), signal.SIGHUP)
        signals = Signals()
        assert signals.take() == []
        signals.close()
    assert signal.signal(signal.SIGHUP, before) is signal.SIG_IGN


def test_the_end_of_the_terminal_before_ends_the_process() -> None:
    run = subprocess.run(
        [sys.executable, "-c", CLOSED_EARLY], capture_output=True, timeout=60, check=False
    )
    assert run.returncode == -signal.SIGHUP & 0xFF, run.stderr


def test_no_descriptor_to_look_with_is_not_the_end_of_the_terminal() -> None:
    early = f"{UNDER_A_TERMINAL}\n{WITHOUT_DESCRIPTORS}"
    run = subprocess.run(
        [sys.executable, "-c", early], capture_output=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr


def test_the_end_of_the_terminal_is_no_wish_to_reload() -> None:
    run = subprocess.run(
        [sys.executable, "-c", CLOSED_TERMINAL], capture_output=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
