"""A batcher, two front ends and their watchdog, under a clock of the test's own."""

from __future__ import annotations

import os
import signal
from typing import Any, cast

from batchpool.core.config.schema import ModelConfig
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.layout.segments import heartbeats_layout, state_page_layout
from batchpool.shm.heartbeat import BATCHER, Heartbeats, frontend_word
from batchpool.shm.pool_state import PoolStatePage
from batchpool.shm.segment import create
from batchpool.supervisor.children.child import Child, ProcessSlot
from batchpool.supervisor.children.roles import ROLES
from batchpool.supervisor.children.watchdog import Watchdog
from batchpool.supervisor.children.worker_slot import WorkerSlot

S = 1_000_000_000
START = 1000 * S
LOOK = S // 4
NAMES = ("batcher", "frontend 0", "frontend 1")


class ProcessDouble:
    """A process as far as a Child uses it; keeps the signals that it got."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.signals: list[int] = []
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


ROLE_OF = {role.name: role for role in ROLES}


def child(name: str, pid: int, started_ns: int) -> Child:
    process = cast(Any, ProcessDouble(pid))
    return Child(
        ROLE_OF[name.partition(" ")[0]], ProcessSlot(name), process, cast(Any, None), -1, started_ns
    )


class WatchdogScene:
    """A batcher, two front ends and their watchdog; time passes only here."""

    def __init__(self, stall_timeout_s: float = 4.0, load_timeout_s: float = 600.0) -> None:
        self.now_ns = START
        self.was_ready = True
        self.traced: set[int] = set()
        self.asked: list[int] = []
        self.load_timeout_s = load_timeout_s
        self.waited_ns: dict[int, int] = {}
        server = ServerConfig(stall_timeout_s=stall_timeout_s, load_timeout_s=load_timeout_s)
        fds = create(state_page_layout(), sealed=False), create(heartbeats_layout(3), sealed=False)
        self.state_page, self.heartbeats = (
            PoolStatePage(fds[0], writable=True),
            Heartbeats(fds[1], 3),
        )
        for fd in fds:
            os.close(fd)
        models = [ModelConfig(import_name="a:B", batch_timeout_s=30.0)]
        self.watchdog = Watchdog(
            server,
            models,
            self.state_page,
            self.heartbeats,
            START,
            self._is_traced,
            lambda pid: self.waited_ns.get(pid, 0),
        )
        self.children: list[Child | None] = [child(n, 10 + i, START) for i, n in enumerate(NAMES)]
        self.worker_slots: list[WorkerSlot] = []

    def _is_traced(self, pid: int) -> bool:
        self.asked.append(pid)
        return pid in self.traced

    def of(self, index: int) -> Child:
        found = self.children[index]
        assert found is not None
        return found

    def beat(self, *indices: int) -> None:
        for index in indices:
            self.heartbeats.beat(index, self.now_ns)

    def look(self) -> None:
        self.watchdog.look(self.now_ns, self.children, self.worker_slots, was_ready=self.was_ready)

    def sleep(self, seconds: float) -> None:
        """Nobody does anything, the supervisor neither; it looks when it wakes."""
        self.now_ns += round(seconds * S)
        self.look()

    def run(self, seconds: float, *beating: int, starving: float = 0.0) -> None:
        """The supervisor looks as often as it said, and these stamp as often.

        starving: the share of this time for which the batcher waits for a processor.
        """
        end_ns = self.now_ns + round(seconds * S)
        pid = 10 + BATCHER
        while self.now_ns < end_ns:
            before_ns = self.now_ns
            self.now_ns = min(end_ns, self.now_ns + self.watchdog.look_ns)
            waited_ns = self.waited_ns.get(pid, 0)
            self.waited_ns[pid] = waited_ns + round(starving * (self.now_ns - before_ns))
            self.beat(*beating)
            self.look()

    def killed(self) -> list[str]:
        """Names of the processes that got a SIGKILL; none gets two."""
        found = []
        for one in (*self.children, *(worker_slot.child for worker_slot in self.worker_slots)):
            if one is not None and one.process.signals:  # type: ignore[attr-defined]
                assert one.process.signals == [signal.SIGKILL]  # type: ignore[attr-defined]
                found.append(one.slot.name)
        return found


ALL = (BATCHER, frontend_word(0), frontend_word(1))
