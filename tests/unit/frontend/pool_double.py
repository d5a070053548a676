"""A pool without its processes: real lanes, batcher and workers, stepped from the test's loop.

`hold` keeps the workers from running anything, so that a test decides when rows finish. Generators
have a `StoryDouble` in the place of both.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

from batchpool.batcher.batcher import Batcher
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.client.arena_lane_client import lane_client_of
from batchpool.client.lane_client import LaneClient
from batchpool.client.pool_facts import ModelFacts
from batchpool.client.session import Session
from batchpool.control.channel import pair
from batchpool.core.errors import Status
from batchpool.core.layout.segments import lane_layout, state_page_layout, worker_layout
from batchpool.core.layout.states import PoolState
from batchpool.core.scheduler.decide import Limits
from batchpool.core.scheduler.queue import I64, QueueColumn
from batchpool.core.tensors.spec import ModelSpec
from batchpool.model import Model, spec_of
from batchpool.shm.doorbell import Doorbell
from batchpool.shm.lane import Lane
from batchpool.shm.pool_state import PoolStatePage
from batchpool.shm.segment import create, map_checked
from batchpool.shm.worker_segment import WorkerSegment
from batchpool.worker.backends.cpu import NumpyBackend
from batchpool.worker.worker import Worker
from tests.unit.frontend.loops import until
from tests.unit.frontend.story_double import StoryDouble
from tests.unit.lanes import new_lane, other_side

SERVER: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 8000,
    "max_body_mib": 8,
    "max_bodies_mib": 0,
    "receive_timeout_s": 120.0,
    "stall_timeout_s": 4.0,
    "drain_s": 5.0,
    "socket": "",
    "page": True,
    "model_control_mode": "none",
    "log_level": "info",
    "access_log": "off",
    "access_log_sample": 1.0,
    "forwarded_allow_ips": (),
    "root_path": "",
    "allowed_hosts": (),
    "cors_origins": (),
    "api_keys_file": "",
}
_LOOK_S = 0.05


class SessionDouble(Session):
    """A session that was attached to nobody; `theirs` is the supervisor's end of it."""

    def __init__(self, models: int, ring: Any, server: Mapping[str, Any]) -> None:
        ours, self.theirs = pair()
        super().__init__(ours, "the supervisor")
        self.server = {**SERVER, **server}
        self._ring_batcher = ring
        fd = create(state_page_layout(), sealed=False)
        self._state_page = PoolStatePage(fd, writable=True)
        os.close(fd)
        self._state_page.state.set(int(PoolState.READY))
        self._state_page.accepting[:] = 1
        self.batchers_end = Doorbell()
        self.bell = Doorbell(os.dup(self.batchers_end.fd))

    def ring(self) -> None:
        self._ring_batcher()

    def close(self) -> None:
        super().close()
        self.batchers_end.close()
        self.theirs.close()


class PoolDouble:
    """One lane, one worker a model. `async with` runs it on the loop."""

    def __init__(
        self,
        *models: type[Model],
        slots: int = 64,
        max_batch: int = 16,
        request_timeout_s: float = 30.0,
        server: Mapping[str, Any] | None = None,
    ) -> None:
        self.hold = False
        self._wake = asyncio.Event()
        self.session = SessionDouble(len(models), self._wake.set, server or {})
        specs = [spec_of(model) for model in models]
        self.batcher = Batcher([ModelQueue(s.name, Limits(max_batch, 0)) for s in specs], 8)
        self.workers: list[Worker] = []
        self.stories: dict[str, StoryDouble] = {}
        self._worker_segments: list[WorkerSegment] = []
        for index, (model, spec) in enumerate(zip(models, specs, strict=True)):
            self.session.lane_set[spec.name] = self._serve(index, model(), spec, slots, max_batch)
            self.session.models[spec.name] = ModelFacts(
                index, spec, 0.9, request_timeout_s, max_batch
            )

    def move(self, name: str, model: type[Model] | None) -> Callable[[], None]:
        """A model gets another lane, served by this class, or is removed. The gate of its old
        lane is moved when the batcher steps next; returns how the session hears of it."""
        old, models = self.session.models[name], dict(self.session.models)
        lane_client, facts = None, None
        if model is not None:
            index, spec = len(self.batcher.models), spec_of(model)
            self.batcher.add_model(index, ModelQueue(name, Limits(old.max_batch, 0)))
            lane_client = self._serve(index, model(), spec, 32, old.max_batch)
            facts = replace(old, index=index, spec=spec)
        self.batcher.lanes.move([old.index])

        def hear() -> None:
            models.pop(name)
            self.session.models = models if facts is None else {**models, name: facts}
            if lane_client is not None:
                self.session.lane_set[name] = lane_client

        return hear

    def _serve(
        self, index: int, model: Model, spec: ModelSpec, slots: int, rows: int
    ) -> LaneClient:
        if spec.generates:
            return self._tell(index, spec, slots)
        layout, of_worker = lane_layout(spec, slots), worker_layout(rows, 8)
        lane_fd, worker_fd = create(layout, sealed=True), create(of_worker, sealed=False)

        def lane() -> Lane:
            return Lane(spec, map_checked(lane_fd, layout), layout)

        def worker_segment() -> WorkerSegment:
            return WorkerSegment(map_checked(worker_fd, of_worker), of_worker)

        worker = Worker(
            spec, worker_segment(), NumpyBackend(model), self._wake.set, time.monotonic_ns
        )
        worker.add_lane(index, index + 1, lane())
        admitted = AdmittedLane(
            index, index + 1, index, lane(), self.session.batchers_end.ring, own_flow=False
        )
        self.batcher.add_lane(admitted)
        proxy = WorkerProxy(index, index, worker_segment(), self._wake.set)
        proxy.worker_segment.ready.set(1)
        self.batcher.add_worker(proxy)
        self.workers.append(worker)
        self._worker_segments.append(proxy.worker_segment)
        lane_client = self._lane_client(index, lane())
        os.close(lane_fd)
        os.close(worker_fd)
        return lane_client

    def _tell(self, index: int, spec: ModelSpec, slots: int) -> LaneClient:
        lane = new_lane(spec, slots)
        admitted = AdmittedLane(
            index, index + 1, index, other_side(lane), self.session.batchers_end.ring,
            own_flow=False,
        )  # fmt: skip
        self.stories[spec.name] = StoryDouble(admitted)
        return self._lane_client(index, lane)

    def _lane_client(self, index: int, lane: Lane) -> LaneClient:
        state_page = self.session.state_page
        return lane_client_of(
            lane,
            watermark=0.9,
            accepting=lambda: state_page.accepts(index),
            serial=index + 1,
            moved=self.session.lane_set.note_move,
        )

    def lane_client(self, model: str) -> LaneClient:
        return self.session.lane_set[model]

    async def run_one_batch(self, model: str) -> None:
        """Let a worker that is held run one batch."""
        index = self.session.models[model].index
        worker, batches = self.workers[index], self._worker_segments[index].batches
        before = batches.get()
        await until(lambda: worker.step() and batches.get() > before, "a batch is run")

    def refuse_queued(self, model: str) -> None:
        """From now on no row of the model can be answered in time, as the batcher finds."""
        lane = self.batcher.lanes.by_number[self.session.models[model].index]
        admit = lane.admit

        def refuse() -> I64:
            rows = admit()
            if rows.shape[1]:
                lane.lane.write_status(rows[QueueColumn.SLOT], Status.OVERLOADED)
                lane.complete(rows[QueueColumn.SLOT], rows[QueueColumn.SEQUENCE])
            return rows[:, :0]

        lane.admit = refuse  # type: ignore[method-assign]

    def release(self) -> None:
        """Let the workers run again."""
        self.hold = False
        self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            now_ns = time.monotonic_ns()
            wake_at_ns = self.batcher.step(now_ns)
            worked = False
            for story in self.stories.values():
                story.take()
                worked |= not self.hold and story.step()
            for worker in () if self.hold else self.workers:
                while worker.step():
                    worked = True
            if worked:
                await asyncio.sleep(0)
                continue
            wait_s = min(_LOOK_S, max(0.0, (wake_at_ns - now_ns) / 1e9))
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    async def __aenter__(self) -> PoolDouble:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()
        self.session.close()
