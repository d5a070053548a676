"""When rows that nobody waits for are bounded: while others are here, and a moment longer."""

from __future__ import annotations

import numpy as np

from batchpool.batcher.model_queue import ModelQueue
from batchpool.core.priority import BACKGROUND, DEFAULT
from batchpool.core.scheduler.background import LATELY_NS
from batchpool.core.scheduler.decide import Limits
from batchpool.core.scheduler.queue import QUEUE_COLUMNS, QueueColumn

NOW = 5_000_000_000


def with_rows(model: ModelQueue, priority: int, n: int = 1) -> None:
    rows = np.zeros((QUEUE_COLUMNS, n), dtype=np.int64)
    rows[QueueColumn.PRIORITY] = priority
    rows[QueueColumn.SUBMIT_NS] = NOW
    model.queue.append(rows)


def test_background_rows_are_bounded_beside_others_and_a_moment_longer() -> None:
    model = ModelQueue("m", Limits(8, 0))
    with_rows(model, BACKGROUND, 4)
    assert not model.has_background_beside(NOW), "nobody waits"
    with_rows(model, DEFAULT)
    assert model.has_background_beside(NOW)
    model.queue.take_front(1)
    assert model.has_background_beside(NOW + LATELY_NS - 1)
    assert not model.has_background_beside(NOW + LATELY_NS)


def test_without_background_rows_there_is_nothing_to_bound() -> None:
    model = ModelQueue("m", Limits(8, 0))
    with_rows(model, DEFAULT, 3)
    with_rows(model, BACKGROUND - 1)
    assert not model.has_background_beside(NOW)
