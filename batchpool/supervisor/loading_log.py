"""The lines of the log about the models that a pool loads at its start."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from batchpool.supervisor.plan.cpu_stage_counts import stage_place
from batchpool.supervisor.plan.plan import ModelPlan

_LOG = logging.getLogger("batchpool.supervisor")
_EVERY_NS = 10_000_000_000


class LoadingLog:
    """Logs what is loaded, and every ten seconds, until the pool is ready, what it waits for.

    status: returns the pool's state in one line. No clock is read here.
    """

    def __init__(self, status: Callable[[], str], started_ns: int) -> None:
        self._status = status
        self._due_ns = started_ns + _EVERY_NS

    def begin(self, models: Sequence[ModelPlan]) -> None:
        """Log the models with their workers, and where their stages on the CPU run."""
        counts = ((model.spec.name, len(model.all_workers)) for model in models)
        names = (f"{name} ({n} worker{'s' * (n > 1)})" for name, n in counts)
        _LOG.info("loading %s", ", ".join(names))
        for model in models:
            for stage in model.cpu_stages:
                where = stage_place(len(model.workers_of(stage)))
                _LOG.info("%s of %s runs %s", stage.label, model.spec.name, where)

    def tick(self, now_ns: int) -> int:
        """Log the state if that is due; returns when it is due next (CLOCK_MONOTONIC ns)."""
        if now_ns >= self._due_ns:
            _LOG.info("still %s", self._status())
            self._due_ns = now_ns + _EVERY_NS
        return self._due_ns
