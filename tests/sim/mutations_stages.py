"""The stages of a model with one rule removed at a time; as in mutations_batcher.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchpool.batcher.completion import Completion
from batchpool.batcher.dispatched_batch import DispatchedBatch
from batchpool.batcher.lane import AdmittedLane
from batchpool.core.layout.states import SlotState
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.core.tensors.stages import Stage
from tests.sim.mutations import Patch


def queued_before_its_stage_is_stored(patch: Patch) -> None:
    entered = AdmittedLane.enter_stage

    def hasty(self: AdmittedLane, rows: Any, stage: Stage) -> None:
        self.lane.state[rows[QueueColumn.SLOT]] = int(SlotState.QUEUED)
        entered(self, rows, stage)

    patch.setattr(AdmittedLane, "enter_stage", hasty)


def stage_is_not_stored(patch: Patch) -> None:
    def enter(self: AdmittedLane, rows: Any, stage: Stage) -> None:
        lane, slots = self.lane, rows[QueueColumn.SLOT]
        rows[QueueColumn.ATTEMPT] = rows[QueueColumn.RETURN] = 0
        rows[QueueColumn.BUCKET] = self._buckets_at(slots, stage)
        lane.attempt[slots] = 0
        lane.state[slots] = int(SlotState.QUEUED)

    patch.setattr(AdmittedLane, "enter_stage", enter)


def takeover_postprocesses_what_waits_for_infer(patch: Patch) -> None:
    queued_rows = AdmittedLane.queued_rows

    def careless(self: AdmittedLane, stage: Stage) -> Any:
        if stage is not Stage.INFER:
            here = np.flatnonzero(self.lane.stage == int(Stage.INFER))
            self.lane.stage[here] = int(Stage.POSTPROCESS)
        return queued_rows(self, stage)

    patch.setattr(AdmittedLane, "queued_rows", careless)


def takeover_infers_what_waits_for_postprocess(patch: Patch) -> None:
    queued_rows = AdmittedLane.queued_rows

    def forgetful(self: AdmittedLane, stage: Stage) -> Any:
        if stage is Stage.POSTPROCESS:
            return queued_rows(self, stage)[:, :0]
        if stage is not Stage.INFER:
            return queued_rows(self, stage)
        slots = np.flatnonzero(self.lane.state == int(SlotState.QUEUED))
        slots = slots[self.lane.stage[slots] != int(Stage.PREPROCESS)]
        return self.rows_in(slots, self.lane.sequence[slots], stage)

    patch.setattr(AdmittedLane, "queued_rows", forgetful)


def every_later_stage_is_infer(patch: Patch) -> None:
    entered = AdmittedLane.enter_stage

    def enter(self: AdmittedLane, rows: Any, stage: Stage) -> None:
        entered(self, rows, Stage.INFER)

    patch.setattr(AdmittedLane, "enter_stage", enter)


def predictions_are_done(patch: Patch) -> None:
    advance = Completion._advance

    def complete(self: Completion, worker: Any, batch: Any, following: Any) -> None:
        if following.stage is Stage.POSTPROCESS:
            self._complete(batch.rows)
        else:
            advance(self, worker, batch, following)

    patch.setattr(Completion, "_advance", complete)


def rows_skip_infer(patch: Patch) -> None:
    advance = Completion._advance

    def hasty(self: Completion, worker: Any, batch: Any, following: Any) -> None:
        advance(self, worker, batch, following.following or following)

    patch.setattr(Completion, "_advance", hasty)


def rows_keep_the_bucket_of_their_features(patch: Patch) -> None:
    bucket = AdmittedLane._buckets_at

    def earlier(self: AdmittedLane, slots: Any, stage: Stage) -> Any:
        return bucket(self, slots, Stage.INFER if stage is Stage.POSTPROCESS else stage)

    patch.setattr(AdmittedLane, "_buckets_at", earlier)


def takeover_infers_every_row(patch: Patch) -> None:
    def queued_rows(self: AdmittedLane, stage: Stage) -> Any:
        slots = np.flatnonzero(self.lane.state == int(SlotState.QUEUED))
        slots = slots[: len(slots) if stage is Stage.INFER else 0]
        return self.rows_in(slots, self.lane.sequence[slots], stage)

    patch.setattr(AdmittedLane, "queued_rows", queued_rows)


def attempts_count_for_all_stages(patch: Patch) -> None:
    entered = AdmittedLane.enter_stage

    def remembering(self: AdmittedLane, rows: Any, stage: Stage) -> None:
        attempts = rows[QueueColumn.ATTEMPT].copy()
        entered(self, rows, stage)
        rows[QueueColumn.ATTEMPT] = attempts

    patch.setattr(AdmittedLane, "enter_stage", remembering)


def failed_rows_are_inferred(patch: Patch) -> None:
    advance = Completion._advance

    def careless(self: Completion, worker: Any, batch: Any, following: Any) -> None:
        for lane, part in self._lanes.by_lane(batch.rows):
            lane.lane.status[part[QueueColumn.SLOT]] = 0
        advance(self, worker, batch, following)

    patch.setattr(Completion, "_advance", careless)


def features_are_done(patch: Patch) -> None:
    def complete(self: Completion, worker: Any, batch: Any, following: Any) -> None:
        self._complete(batch.rows)

    patch.setattr(Completion, "_advance", complete)


def cancels_between_stages_are_forgotten(patch: Patch) -> None:
    patch.setattr(DispatchedBatch, "cancels_since", lambda self, lanes: False)


def rows_keep_the_bucket_of_their_inputs(patch: Patch) -> None:
    patch.setattr(
        AdmittedLane,
        "_buckets_at",
        lambda self, slots, stage: self._buckets.of(slots),
    )


def rows_of_the_gone_go_on(patch: Patch) -> None:
    without = Completion._without_closing_lanes

    def all_of(self: Completion, model: Any, rows: Any) -> Any:
        return rows if model.following is not None else without(self, model, rows)

    patch.setattr(Completion, "_without_closing_lanes", all_of)
