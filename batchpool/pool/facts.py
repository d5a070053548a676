"""What a client is told of the pool when it attaches, and a front end again after a reload."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from batchpool.pool.plan import Plan


def facts_of(plan: Plan) -> dict[str, Any]:
    """{models: in the order of their indices, server}; see `Session.learn`."""
    models = [
        {
            "spec": model.spec.to_wire(),
            "watermark": model.config.watermark,
            "request_timeout_s": model.config.request_timeout_s,
            "max_batch": model.config.max_batch,
            "batch_sizes": list(model.config.batch_sizes),
            "max_wait_ms": model.config.max_wait_ms,
        }
        for model in plan.models
    ]
    return {"models": models, "server": {**asdict(plan.server), "socket": plan.socket}}
