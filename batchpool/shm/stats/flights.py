"""A row of the flight recorder as plain values with names, for people and for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batchpool.core.layout.states import BatchOutcome, DispatchReason
from batchpool.shm.stats.flight_recorder import LOST, BatchEntry


def flight_of(
    entry: BatchEntry, models: Sequence[str], workers: Sequence[str], now_ns: int
) -> dict[str, Any]:
    """One batch. models, workers: names by entry and by seat. now_ns: CLOCK_MONOTONIC.

    age_s: since it was complete. Of a batch's times in ms: queued: its oldest row until dispatch;
    sent: from dispatch until the worker began; ran: in the worker; back: from there until its rows
    were complete. None where nobody knows, as of a worker that died.
    """
    outcome = "LOST" if entry.outcome == LOST else _name(BatchOutcome, entry.outcome)
    return {
        "age_s": round((now_ns - entry.completed_ns) / 1e9, 3),
        "model": _at(models, entry.model),
        "worker": _at(workers, entry.worker_slot),
        "process": entry.process,
        "token": entry.token,
        "rows": entry.rows,
        "size": entry.size,
        "reason": _name(DispatchReason, entry.reason),
        "attempt": entry.attempt,
        "outcome": outcome,
        "extents": entry.extents,
        "queued_ms": round(entry.queued_ns / 1e6, 3) if entry.dispatched_ns else None,
        "sent_ms": _between(entry.dispatched_ns, entry.launched_ns),
        "ran_ms": _between(entry.launched_ns, entry.finished_ns),
        "back_ms": _between(entry.finished_ns, entry.completed_ns),
    }


def _between(start_ns: int, end_ns: int) -> float | None:
    return round((end_ns - start_ns) / 1e6, 3) if start_ns and end_ns else None


def _at(names: Sequence[str], place: int) -> str:
    return names[place] if place < len(names) and names[place] else str(place)


def _name(kind: type[BatchOutcome] | type[DispatchReason], value: int) -> str:
    try:
        return kind(value).name
    except ValueError:
        return str(value)
