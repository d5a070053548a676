"""Counts and times of the task process since its start."""

from __future__ import annotations

from bisect import bisect_left

from batchpool.core.metrics.table import TIME_BOUNDS_S, metric_of

_NS = 10**9


class TaskMetrics:
    """counts: events by name. letters: {model: {code: count}}.
    refusals: by the limit of the store that was met. times: words of histograms as the
    table of metrics has them, {metric: {model: words}}; "" for a metric without a model."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(("submitted", "replayed", "reclaimed", "duplicate"), 0)
        self.letters: dict[str, dict[str, int]] = {}
        self.refusals: dict[str, int] = {}
        self.times: dict[str, dict[str, list[int]]] = {
            "task_seconds": {},
            "task_commit_seconds": {},
        }

    def letter(self, model: str, code: str) -> None:
        """A task became a dead letter."""
        of_model = self.letters.setdefault(model, {})
        of_model[code] = of_model.get(code, 0) + 1

    def refused(self, limit: str) -> None:
        """A new task was refused for this limit of the store."""
        self.refusals[limit] = self.refusals.get(limit, 0) + 1

    def ended(self, model: str, seconds: float) -> None:
        """A task has ended, so long after it was submitted."""
        self._note("task_seconds", model, seconds)

    def committed(self, seconds: float) -> None:
        """A group was committed. The thread of the store calls it, and no other."""
        self._note("task_commit_seconds", "", seconds)

    def _note(self, name: str, model: str, seconds: float) -> None:
        words = self.times[name].get(model)
        if words is None:
            words = self.times[name][model] = [0] * metric_of(name).words_each
        words[bisect_left(TIME_BOUNDS_S, seconds)] += 1
        words[-1] += max(0, round(seconds * _NS))
