"""A stage is decided upon again only when something has changed, or when the time has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from batchpool.batcher import batcher as module
from batchpool.core.scheduler.decide import Limits
from tests.unit.batcher.batcher_bench import Bench
from tests.unit.client.lane_clients import LATER, MS

SLOW = Limits(4, 10 * MS)  # rows wait for others


class Decisions:
    """A batcher with a worker that is busy, and one row that waits. made: decisions so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limits: Limits) -> None:
        self.made = 0
        decide = module.decide

        def counting(*args: Any, **more: Any) -> Any:
            self.made += 1
            return decide(*args, **more)

        monkeypatch.setattr(module, "decide", counting)
        self.bench = bench = Bench(limits)
        bench.add_lane(1)
        self.worker = bench.add_worker(5)
        bench.send(1, limits.max_batch)
        bench.step()
        (self.batch,) = self.worker.batches.values()
        bench.send(1, 1)
        bench.step()
        self.made = 0

    def after(self, happens: Callable[[], object], after_ns: int = 1000) -> int:
        """The decisions that a step makes after this has happened."""
        before = self.made
        happens()
        self.bench.step(after_ns)
        return self.made - before


def nothing() -> None:
    pass


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> Decisions:
    return Decisions(monkeypatch, SLOW)


def test_nothing_is_decided_again_while_nothing_happens(decisions: Decisions) -> None:
    assert [decisions.after(nothing) for _ in range(3)] == [0, 0, 0]
    assert decisions.bench.models[0].metrics.queued == 1
    assert len(decisions.bench.models[0].queue) == 1


def test_the_next_step_is_due_as_it_was(decisions: Decisions) -> None:
    first = decisions.bench.step()
    assert decisions.bench.step(1000) == first <= LATER


def test_rows_that_come_are_decided_upon(decisions: Decisions) -> None:
    assert decisions.after(lambda: decisions.bench.send(1, 1)) == 1
    assert decisions.after(nothing) == 0


def test_the_end_of_a_batch_is_decided_upon(decisions: Decisions) -> None:
    bench, worker = decisions.bench, decisions.worker
    assert decisions.after(lambda: bench.run(worker, decisions.batch)) == 1
    assert worker.in_flight == 0, "the row waits for others"
    assert decisions.after(nothing) == 0
    assert decisions.after(nothing, 10 * MS) == 1, "its wait is over"
    assert worker.in_flight == 1


def test_a_worker_that_becomes_ready_gets_what_waits(decisions: Decisions) -> None:
    other = decisions.bench.add_worker(6, ready=False)
    decisions.bench.step()
    assert decisions.after(nothing) == 0
    assert decisions.after(lambda: other.worker_segment.ready.set(1)) == 1
    decisions.bench.step(10 * MS)
    assert other.in_flight == 1


def test_other_limits_are_decided_upon(decisions: Decisions) -> None:
    assert decisions.after(lambda: decisions.bench.batcher.set_limits(0, replace(SLOW))) == 1
    assert decisions.after(lambda: decisions.bench.batcher.set_draining(True)) == 1


def test_a_new_lane_is_decided_upon(decisions: Decisions) -> None:
    assert decisions.after(lambda: decisions.bench.add_lane(2)) == 1


def test_a_deadline_is_kept(decisions: Decisions) -> None:
    bench = decisions.bench
    assert decisions.after(lambda: bench.send(1, 1, bench.now_ns + MS)) == 1
    assert bench.step() <= bench.now_ns + MS
    assert decisions.after(nothing, MS) == 1
    assert len(bench.models[0].queue) == 1


def test_with_a_target_every_step_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = Decisions(monkeypatch, replace(SLOW, target_ns=100 * MS))
    assert decisions.after(nothing) == 1
