"""A batcher, one worker of each stage and a client of a model with stages, step by step."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np

from batchpool.batcher.batcher import Batcher
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.recovery import take_over
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.core.errors import InvalidInput
from batchpool.core.layout.segments import Layout, lane_layout, worker_layout
from batchpool.core.layout.stage_numbers import stage_number
from batchpool.core.scheduler.limits import Limits
from batchpool.core.tensors.rows import check_rows
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.core.tensors.stages import Stage, stage_spec, stages_of
from batchpool.model import Model
from batchpool.shm.lane import Lane
from batchpool.shm.segment import Segment, create, map_checked
from batchpool.shm.worker_segment import WorkerSegment
from batchpool.worker.backends.backend import Backend
from batchpool.worker.backends.cpu import NumpyBackend
from batchpool.worker.backends.cpu_stage import CpuStageBackend
from batchpool.worker.backends.preprocess import PreprocessBackend
from batchpool.worker.worker import Worker

SECOND = 1_000_000_000
MODEL = 2
SPEC = ModelSpec(
    "staged",
    "numpy",
    (Tensor("x", "int64"), Tensor("kept", "int64")),
    (Tensor("y", "int64"),),
    (),
    (Tensor("ids", "int64", (Dim(64),)),),
    ("kept",),
)
# The same answers by way of postprocess: so many gaps as an x lacks to 64.
WHOLE = replace(
    SPEC, predictions=(Tensor("gaps", "int64", (Dim(64),)),), kept_tensors=("kept", "ids")
)
# And without preprocess.
AFTER = replace(WHOLE, features=(), kept_inputs=(), kept_tensors=("kept",))


class Lengths(Model):
    """x makes so many ids; y is their number and what was kept.

    bad, bad_after: x whose rows `preprocess` or `postprocess` refuses.
    """

    bad: tuple[int, ...] = ()
    bad_after: tuple[int, ...] = ()
    spec = SPEC

    def preprocess(self, batch: Any) -> Any:
        return {"ids": [ValueError(f"bad {x}") if x in self.bad else np.ones(x, np.int64)
                        for x in batch["x"].tolist()]}  # fmt: skip

    def infer(self, batch: Any) -> Any:
        assert set(batch) == {"kept", "ids"} if self.spec.features else {"x", "kept"}
        x = batch["ids"].sum(axis=1) if self.spec.features else batch["x"]
        if self.spec.predictions:
            return {"gaps": [np.ones(64 - each, np.int64) for each in x.tolist()]}
        return {"y": x + batch["kept"]}

    def postprocess(self, batch: Any) -> Any:
        assert set(batch) == {*self.spec.kept_tensors, "gaps"}
        x = 64 - batch["gaps"].sum(axis=1)
        if "ids" in batch:
            assert x.tolist() == batch["ids"].sum(axis=1).tolist()
        for row in np.flatnonzero(np.isin(x, self.bad_after)).tolist():
            batch.fail(row, InvalidInput(f"bad after {x[row]}"))
        return {"y": x + batch["kept"]}


class StagedBench:
    """now_ns: the time of the next step. workers: by stage. few: rows that need no arrays."""

    def __init__(
        self, lanes: int = 1, max_batch: int = 4, spec: ModelSpec = SPEC, few: int = 8
    ) -> None:
        self.few = few
        self.now_ns = 1000 * SECOND
        self.spec = spec
        self.max_batch = max_batch
        self._mapped: list[tuple[Layout, int]] = []
        self._lanes = [self._new(lane_layout(spec, 16)) for _ in range(lanes)]
        self.clients = [LaneClient(self._lane(i)) for i in range(lanes)]
        self.model = Lengths()
        self.model.spec = spec
        self._records = {stage: self._new(worker_layout(8, 8)) for stage in stages_of(spec)}
        self.workers = {stage: self._worker(stage) for stage in stages_of(spec)}
        self.batcher = self._batcher()

    def _new(self, layout: Layout) -> int:
        fd = create(layout, sealed=False)
        self._mapped.append((layout, fd))
        return len(self._mapped) - 1

    def _map(self, number: int) -> tuple[Layout, Segment]:
        layout, fd = self._mapped[number]
        return layout, map_checked(fd, layout)

    def _lane(self, i: int) -> Lane:
        layout, segment = self._map(self._lanes[i])
        return Lane(self.spec, segment, layout)

    def _segment(self, stage: Stage) -> WorkerSegment:
        layout, segment = self._map(self._records[stage])
        return WorkerSegment(segment, layout)

    def _worker(self, stage: Stage) -> Worker:
        segment = self._segment(stage)
        backends: dict[Stage, Backend] = {
            Stage.PREPROCESS: PreprocessBackend(self.model),
            Stage.INFER: NumpyBackend(self.model),
            Stage.POSTPROCESS: CpuStageBackend(self.model.postprocess, writable=False),
        }
        worker = Worker(
            stage_spec(self.spec, stage),
            segment,
            backends[stage],
            lambda: None,
            lambda: self.now_ns,
        )
        for i in range(len(self._lanes)):
            worker.add_lane(i, i + 1, self._lane(i).of_stage(stage))
        segment.ready.set(1)
        return worker

    def _batcher(self) -> Batcher:
        batcher = Batcher([], 8)
        self.stages: dict[Stage, ModelQueue] = {}
        for stage in stages_of(self.spec):
            limits = Limits(self.max_batch, 0).of_stage(stage_spec(self.spec, stage))
            model = ModelQueue("m", limits, stage=stage)
            if self.stages:
                model.follow(list(self.stages.values())[-1])
            self.stages[stage] = model
            batcher.add_model(stage_number(MODEL, stage), model)
        first = stage_number(MODEL, stages_of(self.spec)[0])
        for i in range(len(self._lanes)):
            batcher.add_lane(
                AdmittedLane(
                    i, i + 1, first, self._lane(i), lambda: None, own_flow=False, few=self.few
                )
            )
        for number, stage in enumerate(stages_of(self.spec), 1):
            model_number = stage_number(MODEL, stage)
            proxy = WorkerProxy(number, model_number, self._segment(stage), lambda: None)
            batcher.add_worker(proxy)
        return batcher

    def succeed(self) -> None:
        """Another batcher takes over."""
        self.batcher = self._batcher()
        take_over(self.batcher)

    def close(self) -> None:
        for _, fd in self._mapped:
            os.close(fd)

    # -- what happens -------------------------------------------------------------------

    def send(self, *x: int, lane: int = 0, within_ns: int = 60 * SECOND) -> PendingRequest:
        rows = check_rows(self.spec, {"x": list(x), "kept": [1000] * len(x)}, {})
        client = self.clients[lane]
        pending = client.submit(
            rows, self.now_ns, self.now_ns + within_ns, priority=0, flow=1, tag=None
        )
        client.flush()
        return pending

    def step(self, after_ns: int = 1000) -> None:
        self.now_ns += after_ns
        self.batcher.step(self.now_ns)

    def run(self, stage: Stage) -> None:
        """The stage's worker runs all that it has."""
        while self.workers[stage].step():
            pass

    def waiting(self, stage: Stage) -> int:
        return len(self.stages[stage].queue)

    def answers(self, pending: PendingRequest, lane: int = 0) -> list[int]:
        """The outputs of a request that is done; raises its error."""
        client = self.clients[lane]
        assert pending in client.reap(self.now_ns), "it is not done"
        found: list[int] = client.result(pending, copy=True)["y"].tolist()
        return found
