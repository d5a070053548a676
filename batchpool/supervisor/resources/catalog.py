"""What a client is told of the pool when it attaches, and a front end again after a reload."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from batchpool.supervisor.plan.plan import ModelPlan, Plan


def facts_of(plan: Plan, edition: int) -> dict[str, Any]:
    """{models, server, edition}; see `Session.learn`. edition: which of this pool's plans it is."""
    server = {**asdict(plan.server), "socket": plan.socket}
    models = [model_facts(model) for model in plan.models]
    return {"models": models, "server": server, "edition": edition}


def model_facts(model: ModelPlan) -> dict[str, Any]:
    """One of the models."""
    return {
        "entry": model.entry,
        "spec": model.spec.to_wire(),
        "watermark": model.config.watermark,
        "request_timeout_s": model.config.request_timeout_s,
        "max_batch": model.config.max_batch,
        "batch_sizes": list(model.config.batch_sizes),
        "idempotent": model.config.idempotent,
        "max_wait_ms": model.config.max_wait_ms,
    }
