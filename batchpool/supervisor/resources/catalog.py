"""Models, settings and lanes as control messages tell clients of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from batchpool.control.messages import LaneForm, ModelForm
from batchpool.supervisor.plan.plan import ModelPlan, Plan
from batchpool.supervisor.resources.lane_table import LaneEntry


def model_forms(plan: Plan) -> tuple[ModelForm, ...]:
    """All models of a plan."""
    return tuple(map(model_form, plan.models))


def model_form(model: ModelPlan) -> ModelForm:
    """One model."""
    return ModelForm(
        entry=model.entry,
        spec=model.spec.to_wire(),
        watermark=model.config.watermark,
        request_timeout_s=model.request_timeout_s,
        max_batch=model.config.max_batch,
        batch_sizes=tuple(model.config.batch_sizes),
        idempotent=model.config.idempotent,
        max_wait_ms=model.config.max_wait_ms,
    )


def server_form(plan: Plan) -> dict[str, Any]:
    """The server's settings, with the path of the pool's socket."""
    return {**asdict(plan.server), "socket": plan.socket}


def lane_form(lane: LaneEntry) -> LaneForm:
    """One lane; its segment travels with the message."""
    layout = lane.layout
    return LaneForm(lane.serial, lane.model, layout.slots, layout.digest, layout.arena_bytes)
