"""Kills and stops for bench.chaos: whom, how, and whether rows were RUNNING at that moment."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchpool.client.control import ask_status
from batchpool.core.errors import PoolError
from bench.chaos.load import DEADLINE_S, GRACE_S
from bench.chaos.tagged import Beats
from bench.support.serving import Served

WORKERS = 2
BATCH_TIMEOUT_S = 2.0
STOP_S = (0.2, 3.0)  # shorter than the 5 s within which an answer must come, with time to recover
PAUSE_S = (0.0, 1.0)
MORTAL_PAUSE_S = (1.5, 4.5)
RECOVERY_S = 30.0
FOUND_WITHIN_S = BATCH_TIMEOUT_S + 5.0
_POLL_S = 0.05
_BUSY_WITHIN_S = 2.0

KILL, STOP, LEAVE = "kill", "stop and continue", "stop and leave"
# One round: every kind is killed once and stopped once, in any order.
_ROUND = [(kind, way) for kind in ("worker", "batcher", "frontend") for way in (KILL, STOP)]
_SERVING = ("running", "serving")


@dataclass
class Record:
    """The strikes by process and kind. running: those that met rows RUNNING."""

    strikes: Counter[tuple[str, str]] = field(default_factory=Counter)
    running: Counter[tuple[str, str]] = field(default_factory=Counter)
    found_s: list[float] = field(default_factory=list)  # until a worker left stopped was dead
    recovery_s: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def note(self, kind: str, way: str, running: bool, text: str) -> None:
        self.strikes[kind, way] += 1
        self.running[kind, way] += running
        self.events.append(f"{time.monotonic():.2f} s: {kind} {text}, {way}{' *' * running}")

    def total(self, kind: str, of: Counter[tuple[str, str]] | None = None) -> int:
        return sum(n for (k, _), n in (self.strikes if of is None else of).items() if k == kind)


class Chaos:
    """Strikes processes of a pool until a time, one after another."""

    def __init__(
        self,
        served: Served,
        beats: Beats,
        rng: random.Random,
        record: Record,
        *,
        kills_only: bool = False,
    ) -> None:
        self._socket = served.socket
        self._beats = beats
        self._rng = rng
        self._record = record
        self._round = [(kind, way) for kind, way in _ROUND if way == KILL or not kills_only]
        self._dead_pid = 0  # the pool may not have noticed yet

    def run(self, until_s: float) -> None:
        ways: list[tuple[str, str]] = []
        last = STOP
        while time.monotonic() < until_s and not self._record.faults:
            if not ways:
                ways = self._rng.sample(self._round, len(self._round))
            kind, way = ways.pop()
            if (kind, way) == ("worker", STOP):
                way = self._rng.choice((STOP, LEAVE))
            # A kill may follow a kill before all is well again; stops stand alone, since two of
            # them in a row would hold a request up for longer than its deadline.
            alone = way != KILL or last != KILL or self._rng.random() < 0.5
            if alone and not self.settle():
                return
            time.sleep(self._rng.uniform(*PAUSE_S))
            self._strike(kind, way)
            last = way
        self.settle()

    def settle(self) -> bool:
        """Wait until every process serves again."""
        start_s = time.monotonic()
        if self._await(self._is_settled, "every process serves") is None:
            return False
        self._record.recovery_s.append(time.monotonic() - start_s)
        return True

    def _is_settled(self, status: dict[str, Any]) -> bool:
        return (
            status["state"] == "ready"
            and all(p["pid"] and p["state"] in _SERVING for p in status["processes"])
            and all(p["pid"] != self._dead_pid for p in status["processes"])
            and all(m["workers"] == f"{WORKERS}/{WORKERS}" for m in status["models"].values())
        )

    def _await(self, is_so: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any] | None:
        until_s = time.monotonic() + RECOVERY_S
        status: Any = None
        while time.monotonic() < until_s:
            try:
                status = ask_status(self._socket)
            except PoolError as exc:
                self._record.faults.append(f"the pool does not say its status: {exc}")
                return None
            if is_so(status):
                return dict(status)
            time.sleep(_POLL_S)
        self._record.faults.append(f"not within {RECOVERY_S:g} s: {what}; {status}")
        return None

    def _strike(self, kind: str, way: str) -> None:
        def victims(status: dict[str, Any]) -> list[dict[str, Any]]:
            rows = [p for p in status["processes"] if p["pid"] and p["state"] in _SERVING]
            return [p for p in rows if p["name"].startswith(kind)]

        status = self._await(lambda s: bool(victims(s)), f"a {kind} serves")
        if status is None:
            return
        victim = self._rng.choice(victims(status))
        workers = [p["pid"] for p in status["processes"] if p["name"].startswith("worker")]
        watched = [victim["pid"]] if kind == "worker" else workers
        if way == LEAVE:
            watched = []  # at any moment: one that is stopped while idle must be found as well
        try:
            pidfd = os.pidfd_open(victim["pid"])
        except ProcessLookupError:
            return
        try:
            if await_end(pidfd, 0):
                return
            running = self._signal_busy(pidfd, watched, signal.SIGKILL if way == KILL else None)
            self._record.note(kind, way, running, f"{victim['name']} (pid {victim['pid']})")
            self._await_end(pidfd, victim, way)
            if await_end(pidfd, 0):
                self._dead_pid = victim["pid"]
        finally:
            os.close(pidfd)

    def _signal_busy(self, pidfd: int, workers: list[int], sig: signal.Signals | None) -> bool:
        """Signal while a batch runs in one of these workers; whether it still did afterwards."""
        until_s = time.monotonic() + (_BUSY_WITHIN_S if workers else 0)
        pids = [pid for pid in workers if pid and self._has_beat(pid)]
        busy: dict[int, int] = {}
        while not busy and time.monotonic() < until_s:
            busy = {pid: beat for pid in pids if (beat := self._beats.read(pid)) % 2}
            if not busy:
                time.sleep(0.0002)
        signal_it(pidfd, sig or signal.SIGSTOP)
        return any(self._beats.read(pid) == beat for pid, beat in busy.items())

    def _has_beat(self, pid: int) -> bool:
        try:
            self._beats.read(pid)
        except (OSError, ValueError):  # it has not loaded its model yet
            return False
        return True

    def _await_end(self, pidfd: int, victim: dict[str, Any], way: str) -> None:
        start_s = time.monotonic()
        if way == STOP:
            await_end(pidfd, self._rng.uniform(*STOP_S))
            signal_it(pidfd, signal.SIGCONT)
        elif not await_end(pidfd, FOUND_WITHIN_S):
            self._record.faults.append(
                f"{victim['name']} did not end within {FOUND_WITHIN_S:g} s of: {way}"
            )
            signal_it(pidfd, signal.SIGCONT)
        elif way == LEAVE:
            self._record.found_s.append(time.monotonic() - start_s)


def signal_it(pidfd: int, sig: signal.Signals) -> None:
    """Nothing if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, sig)


def await_end(pidfd: int, timeout_s: float) -> bool:
    """True if the process ended within this time."""
    return bool(select.select([pidfd], [], [], timeout_s)[0])


class Mortals(threading.Thread):
    """Short-lived clients, one after another, that die or stop in the middle of a call."""

    def __init__(self, served: Served, rng: random.Random, record: Record, until_s: float) -> None:
        super().__init__()
        self._socket = served.socket
        self._rng = rng
        self._record = record
        self._until_s = until_s
        self._number = 1000

    def run(self) -> None:
        while time.monotonic() < self._until_s and not self._record.faults:
            self._number += 1
            command = [sys.executable, "-m", "bench.chaos.load", "mortal", self._socket]
            with subprocess.Popen(
                [*command, str(self._number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            ) as process:
                try:
                    self._live_and_die(process)
                finally:
                    process.kill()
            time.sleep(self._rng.uniform(*MORTAL_PAUSE_S))

    def _live_and_die(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        begun = select.select([process.stdout], [], [], RECOVERY_S)[0]
        if not begun or process.stdout.readline() != b"calling\n":
            self._record.faults.append(f"short-lived client {self._number} got no answer")
            return
        time.sleep(self._rng.uniform(0, 0.3))
        way = self._rng.choice((KILL, KILL, STOP))
        if way == STOP:
            process.send_signal(signal.SIGSTOP)
            time.sleep(self._rng.uniform(*STOP_S))
            process.send_signal(signal.SIGCONT)
            if self._rng.random() < 0.5:
                self._end_well(process)
        process.kill()
        process.wait()
        self._record.note("client", way, False, f"{self._number} (pid {process.pid})")

    def _end_well(self, process: subprocess.Popen[bytes]) -> None:
        try:
            out, _ = process.communicate(timeout=2 * (DEADLINE_S + GRACE_S))
        except subprocess.TimeoutExpired:
            self._record.faults.append(f"short-lived client {self._number} did not end")
            return
        if process.returncode:
            self._record.faults.append(
                f"short-lived client {self._number} ended with {process.returncode}: {out!r}"
            )


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def open_descriptors(pid: int) -> int:
    """The least of several looks: a question about the status takes some for a moment."""
    least = len(os.listdir(f"/proc/{pid}/fd"))
    for _ in range(10):
        time.sleep(0.01)
        least = min(least, len(os.listdir(f"/proc/{pid}/fd")))
    return least


def zombies_of(parent: int) -> int:
    """Children that ended and were not reaped."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            count += fields[0] == b"Z" and int(fields[1]) == parent
    return count
