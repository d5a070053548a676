"""A recorded batch as plain values: names, ages, durations, and unknown times."""

from __future__ import annotations

from typing import Any

from batchpool.core.layout.states import BatchOutcome, DispatchReason
from batchpool.shm.stats.flight_recorder import LOST, FlightRecorder, batch_fields

MS = 10**6
MODELS, WORKERS = ["minilm"], ["worker 0 of minilm", "worker 1 of minilm"]


def fields(outcome: int, *times_ms: int, **changes: Any) -> dict[str, Any]:
    """times_ms: queued, dispatched, launched, finished, completed."""
    row = {"model": 0, "worker_slot": 1, "process": 3, "token": 9, "rows": 5, "size": 8}
    row |= {"reason": int(DispatchReason.WAIT), "attempt": 1, "extents": 2, **changes}
    flight_recorder = FlightRecorder()
    queued, *others = [time * MS for time in times_ms]
    names = ("dispatched_ns", "launched_ns", "finished_ns", "completed_ns")
    times = dict(zip(names, others, strict=True))
    flight_recorder.write(**row, outcome=outcome, queued_ns=queued, **times)
    (batch,) = flight_recorder.last()
    return batch_fields(batch, MODELS, WORKERS, now_ns=4000 * MS)


def test_a_batch_is_told_by_names_and_by_where_its_time_went() -> None:
    assert fields(BatchOutcome.OK, 7, 1000, 1002, 1012, 1013) == {
        "age_s": 2.987, "model": "minilm", "worker": "worker 1 of minilm", "process": 3,
        "token": 9, "rows": 5, "size": 8, "reason": "WAIT", "attempt": 1, "outcome": "OK",
        "extents": 2, "queued_ms": 7, "sent_ms": 2, "ran_ms": 10, "back_ms": 1,
    }  # fmt: skip


def test_of_a_worker_that_died_it_is_not_known_how_long_it_ran() -> None:
    lost = fields(LOST, 7, 1000, 1002, 0, 1500)
    assert lost["outcome"] == "LOST"
    assert (lost["sent_ms"], lost["ran_ms"], lost["back_ms"]) == (2, None, None)


def test_what_an_earlier_batcher_sent_has_no_dispatch() -> None:
    adopted = fields(BatchOutcome.OK, 0, 0, 1002, 1012, 1013)
    assert (adopted["queued_ms"], adopted["sent_ms"], adopted["ran_ms"]) == (None, None, 10)


def test_numbers_without_a_name_stay_numbers() -> None:
    odd = fields(77, 1, 1, 1, 1, 1, model=5, worker_slot=9, reason=88)
    assert (odd["model"], odd["worker"], odd["reason"], odd["outcome"]) == ("5", "9", "88", "77")


def test_the_first_number_behind_the_names_is_one_without_a_name() -> None:
    odd = fields(BatchOutcome.OK, 1, 1, 1, 1, 1, model=1, worker_slot=2)
    assert (odd["model"], odd["worker"]) == ("1", "2")
