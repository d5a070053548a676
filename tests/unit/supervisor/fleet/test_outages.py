"""Requests are taken while a worker comes back, and refused when it did not come back in time."""

from __future__ import annotations

import pytest

from batchpool.supervisor.fleet.outages import Outages

S = 1_000_000_000
START = S // 2
WAIT = 2 * START + 2 * S


class Model:
    """One model with entry 3 and request_timeout_s = 30; its last start took half a second."""

    def __init__(self, timeout_s: float = 30.0) -> None:
        self.outages = Outages()
        self.timeout_ns = int(timeout_s * S)

    def accepts(self, now_ns: int, *, serving: bool, useful: bool = False) -> bool:
        return self.outages.accepts(
            3, serving=serving, useful=useful, timeout_ns=self.timeout_ns, now_ns=now_ns
        )

    def serves_until(self, now_ns: int, *, useful: bool = True) -> None:
        self.outages.started(3, START)
        assert self.accepts(now_ns, serving=True)
        if useful:
            self.outages.ended(3, now_ns)
        assert self.accepts(now_ns, serving=False)


def test_a_model_that_was_never_served_is_not_ready() -> None:
    model = Model()
    assert not model.accepts(0, serving=False)
    assert not model.accepts(S, serving=False)
    assert model.outages.next_ns() == 1 << 62


def test_requests_are_taken_for_two_starts_and_two_seconds() -> None:
    model = Model()
    model.serves_until(10 * S)
    assert model.accepts(10 * S + WAIT - 1, serving=False)
    assert model.outages.next_ns() == 10 * S + WAIT
    assert not model.accepts(10 * S + WAIT, serving=False)
    assert model.outages.next_ns() == 1 << 62
    assert not model.accepts(100 * S, serving=False)
    assert model.accepts(101 * S, serving=True)


def test_requests_that_would_be_late_when_the_worker_is_back_are_not_taken() -> None:
    """A start of 40 s, deadlines of 30 s."""
    model = Model(timeout_s=30)
    model.outages.started(3, 40 * S)
    assert model.accepts(0, serving=True)
    model.outages.ended(3, 0)
    assert not model.accepts(0, serving=False)
    assert model.outages.next_ns() == 10 * S
    assert not model.accepts(10 * S - 1, serving=False)
    assert model.accepts(10 * S, serving=False)
    assert model.outages.next_ns() == 82 * S
    assert model.accepts(82 * S - 1, serving=False)
    assert not model.accepts(82 * S, serving=False)
    assert model.outages.next_ns() == 1 << 62


def test_a_deadline_shorter_than_the_whole_time_ends_no_outage() -> None:
    """Requests that come later may be in time: their deadlines end later too."""
    model = Model(timeout_s=1)
    model.serves_until(10 * S)
    assert model.accepts(10 * S + WAIT - 1, serving=False)
    assert not model.accepts(10 * S + WAIT, serving=False)


def test_a_slow_start_counts_and_is_forgotten_in_time() -> None:
    outages = Outages()
    outages.started(3, 8 * S)
    for _ in range(12):
        outages.started(3, START)
    outages.ended(3, 0)
    assert outages.accepts(3, serving=False, useful=False, timeout_ns=90 * S, now_ns=WAIT - 1)
    assert not outages.accepts(3, serving=False, useful=False, timeout_ns=90 * S, now_ns=WAIT)
    outages.started(3, 8 * S)
    assert outages.accepts(3, serving=False, useful=False, timeout_ns=90 * S, now_ns=18 * S - 1)


def test_a_worker_that_dies_over_and_over_before_any_work_makes_it_not_ready() -> None:
    """C32: no claim on workers that never come."""
    model = Model()
    model.serves_until(0)
    for now_ns in range(0, WAIT, S // 2):
        assert model.accepts(now_ns, serving=True)
        assert model.accepts(now_ns + S // 8, serving=False)
    assert model.accepts(WAIT, serving=True), "it is there, who knows"
    assert not model.accepts(WAIT + 1, serving=False)


def test_a_worker_that_dies_over_and_over_after_useful_work_is_waited_for_each_time() -> None:
    model = Model()
    for now_ns in range(0, 4 * WAIT, S // 2):
        model.serves_until(now_ns)


def test_useful_work_that_was_seen_ends_the_outage() -> None:
    model = Model()
    model.serves_until(0)
    assert model.outages.is_open(3)
    assert model.accepts(S, serving=True, useful=True)
    assert not model.outages.is_open(3)
    assert model.accepts(20 * S, serving=False), "condemned after useful work: the time begins now"
    assert not model.accepts(20 * S + WAIT, serving=False)


def test_one_that_was_idle_for_long_is_waited_for_too() -> None:
    model = Model()
    model.serves_until(0)
    assert model.accepts(S, serving=True)
    assert model.accepts(S + WAIT, serving=True)
    assert model.accepts(S + WAIT + 1, serving=False)
    assert model.accepts(S + 2 * WAIT, serving=False)


@pytest.mark.parametrize("useful", [False, True])
def test_nothing_is_kept_of_a_model_that_is_gone(useful: bool) -> None:
    model = Model()
    model.serves_until(0, useful=useful)
    model.outages.forget(3)
    assert model.outages.next_ns() == 1 << 62
    assert not model.accepts(1, serving=False)
