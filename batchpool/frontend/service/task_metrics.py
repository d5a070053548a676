"""The counts of the task process as series of metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from batchpool.control.task_messages import TaskStatus
from batchpool.core.metrics.table import Metric, metric_of

Series = tuple[tuple[str, ...], Sequence[int]]


def task_series(status: TaskStatus) -> Iterator[tuple[Metric, list[Series]]]:
    """(metric, its series) of everything that is counted of tasks."""
    states: list[Series] = [
        ((model, state), [n])
        for model, of_model in status.tasks.items()
        for state, n in of_model.items()
    ]
    yield metric_of("tasks"), states
    for name in ("submitted", "replayed", "reclaimed", "duplicate"):
        yield metric_of(f"tasks_{name}_total"), [((), [status.counts.get(name, 0)])]
    yield metric_of("tasks_refused_total"), [((k,), [n]) for k, n in status.refusals.items()]
    letters: list[Series] = [
        ((model, code), [n]) for model, codes in status.letters.items() for code, n in codes.items()
    ]
    yield metric_of("dead_letters_total"), letters
    yield metric_of("dead_letters_kept"), [((), [status.kept_letters])]
    yield metric_of("task_oldest_seconds"), [((), [round(status.oldest_s * 1e9)])]
    yield metric_of("task_store_bytes"), [((), [status.store_bytes])]
    seconds = status.times.get("task_seconds", {})
    yield metric_of("task_seconds"), [((model,), words) for model, words in seconds.items()]
    commits = status.times.get("task_commit_seconds", {})
    yield metric_of("task_commit_seconds"), [((), words) for words in commits.values()]
    if (batches := status.batches) is not None:
        statuses: list[Series] = [((name,), [n]) for name, n in batches.statuses.items()]
        yield metric_of("batches_kept"), statuses
        lines: list[Series] = [((name,), [n]) for name, n in batches.lines.items()]
        yield metric_of("batch_lines_total"), lines
        yield metric_of("files"), [((), [batches.files])]
        yield metric_of("file_bytes"), [((), [batches.bytes])]
