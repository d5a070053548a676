"""Who is alive but does nothing: found by the clock, and killed; the end is noticed elsewhere.

    batcher, front end   no heartbeat for stall_timeout_s: stopped, in an endless loop or
                         deadlocked. Before its first stamp: load_timeout_s, at least a minute
    worker               load_timeout_s to load, then batch_timeout_s for a batch

Nobody is judged by time in which the supervisor itself could not look (supervisor/children/attention.py), nor
killed under a debugger; when that lets go, at least half the time is left. A wait for a processor
does not count as a stall (supervisor/children/excuses.py). Before the pool was ready once, nobody waits for an
answer and the machine is busy with loading: only load_timeout_s counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from batchpool.core.config.schema import ModelConfig, ServerConfig
from batchpool.shm.heartbeat import BATCHER, Heartbeats, beat_interval_ns
from batchpool.shm.pool_state import PoolStatePage
from batchpool.supervisor.children.attention import LoopGaps
from batchpool.supervisor.children.child import Child
from batchpool.supervisor.children.excuses import is_traced, waited_ns
from batchpool.supervisor.children.worker_slot import WorkerSlot

_LOG = logging.getLogger("batchpool.supervisor")
_LEAST_START_S = 60.0  # load_timeout_s is a model's, and may be shorter than a Python's start


class Watchdog:
    """Judges the supervisor's children, and says on the state page when the batcher stalls."""

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
        self.judge_by([server], models, now_ns)

    def judge_by(
        self, servers: Sequence[ServerConfig], models: Sequence[ModelConfig], now_ns: int
    ) -> None:
        """Other limits from now on: the last server's for a batcher or front end, and for each
        worker those of its own seat, which must be among these. Everybody gets a new period."""
        self._stall_s = servers[-1].stall_timeout_s
        self._start_s = max(servers[-1].load_timeout_s, _LEAST_START_S)
        self.look_ns = beat_interval_ns(self._stall_s)
        limits_s = [self._start_s, self._stall_s]
        limits_s += [server.load_timeout_s for server in servers]
        limits_s += [model.batch_timeout_s for model in models]
        self._attention = LoopGaps(self.look_ns, map(_ns, limits_s), now_ns)

    def look(
        self,
        now_ns: int,
        watched: Sequence[Child | None],
        worker_slots: Sequence[WorkerSlot],
        *,
        was_ready: bool,
    ) -> None:
        """Judge everybody; due every look_ns. watched: who is there, by the heartbeats's posts."""
        self._attention.look(now_ns)
        for worker_slot in worker_slots:
            if worker_slot.child is not None and not worker_slot.child.terminating:
                self._judge_worker(worker_slot, worker_slot.child, now_ns)
        for post, child in enumerate(watched if self._stall_s else ()):
            if child is not None and not child.terminating:
                self._judge_progress(post, child, now_ns, was_ready)

    def standing(self, watched: Sequence[Child | None], since_ns: int) -> list[str]:
        """Who has not stamped since then (CLOCK_MONOTONIC ns): the batcher, also when there is
        none, and front ends that once did. Nobody whom a debugger holds."""
        found = []
        for post, child in enumerate(watched):
            if self._heartbeats.last_ns(post, since_ns) is not None:
                continue
            if child is None:
                name = "batcher" if post == BATCHER else ""
            else:
                begun = (
                    post == BATCHER or self._heartbeats.last_ns(post, child.started_ns) is not None
                )
                free = begun and not self._is_traced(child.pid)
                name = f"{child.slot.name} (pid {child.pid})" if free else ""
            if name:
                found.append(name)
        return found

    def _judge_worker(self, worker_slot: WorkerSlot, worker: Child, now_ns: int) -> None:
        batch_s, load_s = (
            worker_slot.model.config.batch_timeout_s,
            worker_slot.server.load_timeout_s,
        )
        if not worker_slot.ready:
            if self._is_over(worker, worker.started_ns, load_s, now_ns):
                limit = f"within load_timeout_s = {load_s:g}"
                _condemn(worker, "does not load", "did not load", limit)
        elif self._is_over(worker, now_ns - worker_slot.over_batch_ns(now_ns), batch_s, now_ns):
            limit = f"for more than batch_timeout_s = {batch_s:g}"
            _condemn(worker, "is stuck in a batch", "was stuck in a batch", limit)

    def _judge_progress(self, post: int, child: Child, now_ns: int, was_ready: bool) -> None:
        last_ns = self._heartbeats.last_ns(post, child.started_ns)
        if last_ns is None:
            if self._is_over(child, child.started_ns, self._start_s, now_ns):
                limit = f"within {self._start_s:g} s"
                _condemn(child, "does not start", "did not start", limit)
            return
        limit_ns = _ns(self._stall_s)
        quiet_ns = self._attention.watched_ns(last_ns, limit_ns)
        if post == BATCHER:
            self._state_page.stalled.set(int(2 * quiet_ns > limit_ns))
        if 4 * quiet_ns > limit_ns:
            child.exemption.starve(last_ns, self._waited_ns(child.pid), now_ns)
        if was_ready and self._is_over(child, last_ns, self._stall_s, now_ns):
            limit = f"for more than stall_timeout_s = {self._stall_s:g}"
            _condemn(child, "makes no progress", "made no progress", limit)

    def _is_over(self, child: Child, since_ns: int, limit_s: float, now_ns: int) -> bool:
        """Whether it has had its time since then, watched by us and free to run."""
        limit_ns = _ns(limit_s)
        quiet_ns = self._attention.watched_ns(max(since_ns, child.exemption.until_ns), limit_ns)
        # Looked up before the time is over, so that a debugger that lets go leaves some of it.
        if 2 * quiet_ns > limit_ns and self._is_traced(child.pid):
            child.exemption.until_ns = now_ns
            return False
        return quiet_ns > limit_ns


def _condemn(child: Child, does: str, did: str, limit: str) -> None:
    _LOG.error("%s (pid %d) %s %s: killing it", child.slot.name, child.pid, does, limit)
    child.terminate(f"{did} {limit}")


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
