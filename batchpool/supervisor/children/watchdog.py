"""Liveness checks of the supervisor's children: one that is alive but makes no progress is killed.

    batcher, front end   no heartbeat for stall_timeout_s: stopped, in an endless loop, or
                         deadlocked. Before its first heartbeat: load_timeout_s, at least a minute
    worker               load_timeout_s to load, then batch_timeout_s for each batch (a generator's
                         for each step), and to take a new lane while it has no batch. Words of its
                         segment that nobody overwrote (`WorkerSlot.damage`). Its end has a limit of
                         its own: `WorkerFleet.kill_overdue`

Three kinds of time are not held against a child:

- Time in which the supervisor itself did not run (`LoopGaps`): a suspended or overloaded machine
  stops everybody alike.
- Time under a debugger (`is_traced`). When the debugger detaches, at least half the limit is left.
- Time in which its threads wanted a processor and got none (`waited_ns`). That is no exemption for
  a child that is stopped, waits for a lock that is never released, or loops with the processor.

Until the pool was ready once, only load_timeout_s counts for the batcher and the front ends: no
client waits for an answer yet, and loading keeps the machine busy. A child's exit is noticed and
acted upon elsewhere (`batchpool/supervisor/child_events.py`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from batchpool.core.config.schema import ModelConfig
from batchpool.core.config.server_table import ServerConfig
from batchpool.shm.heartbeat import BATCHER, Heartbeats, beat_interval_ns
from batchpool.shm.pool_state import PoolStatePage
from batchpool.supervisor.children.child import Child
from batchpool.supervisor.children.worker_slot import WorkerSlot

_LOG = logging.getLogger("batchpool.supervisor")
_START_S_LEAST = 60.0  # load_timeout_s is about models and may be shorter than a Python's start


def is_traced(pid: int) -> bool:
    """True while a debugger is attached to the process; False when there is no such process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in lines)


def waited_ns(pid: int) -> int:
    """Time that the threads of a process have waited for a processor so far, added up.

    0 when there is no such process, or where the kernel does not count it.
    """
    total_ns = 0
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0
    for thread in threads:
        try:
            total_ns += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[1])
        except (OSError, IndexError):
            continue  # this thread has ended
    return total_ns


class LoopGaps:
    """Detects gaps in the supervisor's loop, so that time it slept is not held against children.

    look_ns: the intended time between two calls of `look`. limits_ns: the limits that children are
    checked against. A gap is a time without a call that is longer than half the limit and than
    two times look_ns, so each limit has gaps of its own. No clock is read here.
    """

    def __init__(self, look_ns: int, limits_ns: Iterable[int], now_ns: int) -> None:
        self._gap_ns = {limit: max(limit // 2, 2 * look_ns) for limit in limits_ns}
        self._since_ns = dict.fromkeys(self._gap_ns, now_ns)
        self._looked_ns = now_ns

    def look(self, now_ns: int) -> None:
        """Record that the loop runs; called before each check, at least every look_ns."""
        passed_ns = now_ns - self._looked_ns
        self._looked_ns = now_ns
        for limit_ns, gap_ns in self._gap_ns.items():
            if passed_ns > gap_ns:
                self._since_ns[limit_ns] = now_ns

    def watched_ns(self, since_ns: int, limit_ns: int) -> int:
        """The time from since_ns, or from the last gap for this limit if that is later, to the
        last call of `look`."""
        return self._looked_ns - max(since_ns, self._since_ns[limit_ns])


class Watchdog:
    """Kills children that exceed their limits, and marks a stalled batcher on the pool state page.

    is_traced, waited_ns: the functions of this module, which tests replace.
    """

    def __init__(
        self,
        server: ServerConfig,
        models: Sequence[ModelConfig],
        state_page: PoolStatePage,
        heartbeats: Heartbeats,
        now_ns: int,
        is_traced: Callable[[int], bool] = is_traced,
        waited_ns: Callable[[int], int] = waited_ns,
    ) -> None:
        self._state_page = state_page
        self._heartbeats = heartbeats
        self._is_traced = is_traced
        self._waited_ns = waited_ns
        self.set_limits([server], models, now_ns)

    def set_limits(
        self, servers: Sequence[ServerConfig], models: Sequence[ModelConfig], now_ns: int
    ) -> None:
        """Replace all limits; every child gets a new period.

        servers, models: every configuration that a worker slot may have. The last server's limits
        apply to the batcher and the front ends, each worker's own slot says its limits.
        """
        self._stall_s = servers[-1].stall_timeout_s
        self._start_s = max(servers[-1].load_timeout_s, _START_S_LEAST)
        self.look_ns = beat_interval_ns(self._stall_s)
        limits_s = [self._start_s, self._stall_s]
        limits_s += [server.load_timeout_s for server in servers]
        limits_s += [model.batch_timeout_s for model in models]
        self._gaps = LoopGaps(self.look_ns, map(_ns, limits_s), now_ns)

    def look(
        self,
        now_ns: int,
        watched: Sequence[Child | None],
        worker_slots: Sequence[WorkerSlot],
        *,
        was_ready: bool,
    ) -> None:
        """Check every child; due every look_ns.

        watched: the batcher and the front ends by their indices in the heartbeat page, None where
        there is no process. was_ready: the pool was ready once.
        """
        self._gaps.look(now_ns)
        for worker_slot in worker_slots:
            worker = worker_slot.child
            if worker is not None and not (worker.terminating or worker.end_by_ns):
                self._check_worker(worker_slot, worker, now_ns)
        for index, child in enumerate(watched if self._stall_s else ()):
            if child is not None and not child.terminating:
                self._check_heartbeat(index, child, now_ns, was_ready)

    def without_heartbeat(self, watched: Sequence[Child | None], since_ns: int) -> list[str]:
        """Names of processes without a heartbeat since since_ns (CLOCK_MONOTONIC).

        These are the batcher, also when there is none, and front ends that had a heartbeat before.
        Processes under a debugger are left out.
        """
        found = []
        for index, child in enumerate(watched):
            if self._heartbeats.last_ns(index, since_ns) is not None:
                continue
            if child is None:
                found += ["batcher"] if index == BATCHER else []
                continue
            has_begun = index == BATCHER or (
                self._heartbeats.last_ns(index, child.started_ns) is not None
            )
            if has_begun and not self._is_traced(child.pid):
                found.append(f"{child.slot.name} (pid {child.pid})")
        return found

    def _check_worker(self, worker_slot: WorkerSlot, worker: Child, now_ns: int) -> None:
        batch_s = worker_slot.model.config.batch_timeout_s
        load_s = worker_slot.server.load_timeout_s
        if not worker_slot.ready:
            if self._has_expired(worker, worker.started_ns, load_s, now_ns):
                limit = f"within load_timeout_s = {load_s:g}"
                _terminate(worker, "does not load", "did not load", limit)
        elif damage := worker_slot.damage():
            worker_slot.mark_broken(damage)
        elif self._has_expired(worker, now_ns - worker_slot.work_age_ns(now_ns), batch_s, now_ns):
            limit = f"for more than batch_timeout_s = {batch_s:g}"
            if worker_slot.has_batch():
                what = "a step" if worker_slot.model.spec.generates else "a batch"
                _terminate(worker, f"is stuck in {what}", f"was stuck in {what}", limit)
            else:
                _terminate(worker, "takes no new lane", "took no new lane", limit)

    def _check_heartbeat(self, index: int, child: Child, now_ns: int, was_ready: bool) -> None:
        last_ns = self._heartbeats.last_ns(index, child.started_ns)
        if last_ns is None:
            if self._has_expired(child, child.started_ns, self._start_s, now_ns):
                limit = f"within {self._start_s:g} s"
                _terminate(child, "does not start", "did not start", limit)
            return
        limit_ns = _ns(self._stall_s)
        quiet_ns = self._gaps.watched_ns(last_ns, limit_ns)
        if index == BATCHER:
            self._state_page.stalled.set(int(2 * quiet_ns > limit_ns))
        if 4 * quiet_ns > limit_ns:
            child.exemption.add_wait(last_ns, self._waited_ns(child.pid), now_ns)
        if was_ready and self._has_expired(child, last_ns, self._stall_s, now_ns):
            limit = f"for more than stall_timeout_s = {self._stall_s:g}"
            _terminate(child, "makes no progress", "made no progress", limit)

    def _has_expired(self, child: Child, since_ns: int, limit_s: float, now_ns: int) -> bool:
        """True when a child has had limit_s since since_ns, without gaps and exemptions."""
        limit_ns = _ns(limit_s)
        quiet_ns = self._gaps.watched_ns(max(since_ns, child.exemption.until_ns), limit_ns)
        # Checked at half the limit, so that a debugger that detaches leaves the other half.
        if 2 * quiet_ns > limit_ns and self._is_traced(child.pid):
            child.exemption.until_ns = now_ns
            return False
        return quiet_ns > limit_ns


def _terminate(child: Child, does: str, did: str, limit: str) -> None:
    _LOG.error("%s (pid %d) %s %s: killing it", child.slot.name, child.pid, does, limit)
    child.terminate(f"{did} {limit}")


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
