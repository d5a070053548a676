"""Log limits: the first few of a kind pass, the rest is counted; samples have their share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.core.text.log_limits import FIRST, PERIOD_S, LogLimiter, TraceSample


class Listener:
    """Logs what a `LogLimiter` lets through, by a clock of its own."""

    def __init__(self) -> None:
        self.limiter: LogLimiter[str] = LogLimiter()
        self.now_s = 0.0
        self.said: list[str] = []
        self.counts: list[tuple[int, str]] = []

    def hear(self, kind: str, message: str) -> None:
        self.counts += self.limiter.due(self.now_s)
        if self.limiter.place(kind, self.now_s):
            self.said.append(message)
        else:
            self.limiter.hold(kind, message)


def test_the_first_are_said_and_the_others_counted() -> None:
    listener = Listener()
    for i in range(FIRST + 7):
        listener.hear("raised", f"row {i}")
    assert listener.said == [f"row {i}" for i in range(FIRST)]
    assert listener.limiter.is_holding()
    assert listener.limiter.due(PERIOD_S - 0.001) == []
    assert listener.limiter.due(PERIOD_S) == [(7, f"row {FIRST + 6}")]
    assert not listener.limiter.is_holding()


def test_a_flood_that_goes_on_has_one_count_a_period() -> None:
    listener = Listener()
    for i in range(30_000):  # a thousand a second for half a minute
        listener.now_s = i / 1000
        listener.hear("raised", str(i))
    assert listener.said == [str(i) for i in range(FIRST)]
    assert [count for count, _ in listener.counts] == [10_000 - FIRST, 10_000]
    assert listener.limiter.rest(30.0) == [(10_000, "29999")]


def test_a_kind_that_was_silent_for_a_period_starts_anew() -> None:
    listener = Listener()
    for _ in range(FIRST + 1):
        listener.hear("raised", "before")
    listener.counts += listener.limiter.due(PERIOD_S)
    listener.now_s = 2 * PERIOD_S
    listener.hear("raised", "after")
    assert listener.said == ["before"] * FIRST + ["after"]
    assert listener.counts == [(1, "before")]


def test_kinds_do_not_shut_each_other_out() -> None:
    listener = Listener()
    for _ in range(100):
        listener.hear("noisy", "noise")
    listener.hear("seldom", "a word")
    assert listener.said == ["noise"] * FIRST + ["a word"]


def test_the_place_tells_the_first_from_its_repeats() -> None:
    repeats: LogLimiter[str] = LogLimiter(first=3)
    assert [repeats.place("raised", 0.0) for _ in range(4)] == [1, 2, 3, 0]


def test_kinds_without_number_take_no_memory_without_end() -> None:
    listener = Listener()
    for i in range(5000):
        listener.hear(f"kind {i}", f"message {i}")
    counted = sum(count for count, _ in listener.limiter.rest(0.0))
    assert len(listener.said) + counted == 5000
    assert len(listener.said) == 1000 + FIRST


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 15)), max_size=200))
def test_every_message_is_said_or_counted_once(heard: list[tuple[str, float]]) -> None:
    listener = Listener()
    for i, (kind, pause_s) in enumerate(heard):
        listener.now_s += pause_s
        listener.hear(kind, str(i))
    listener.counts += listener.limiter.rest(listener.now_s)
    counted = sum(count for count, _ in listener.counts)
    assert len(listener.said) + counted == len(heard)
    assert len(set(listener.said)) == len(listener.said)


# -- samples ---------------------------------------------------------------------------------

shares = st.floats(0, 1)


@given(shares, st.binary(min_size=1))
def test_whoever_asks_gets_the_same_verdict_on_a_name(share: float, name: bytes) -> None:
    here, there = TraceSample(share), TraceSample(share)
    there.has(b"")
    assert here.has(name) == here.has(name) == there.has(name)


@given(shares, shares, st.binary(min_size=1))
def test_a_larger_share_has_all_of_a_smaller_one(a: float, b: float, name: bytes) -> None:
    assert TraceSample(min(a, b)).has(name) <= TraceSample(max(a, b)).has(name)


@given(st.binary())
def test_the_ends_are_none_and_all(name: bytes) -> None:
    assert not TraceSample(0).has(name)
    assert TraceSample(1).has(name)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_of_many_names_it_has_about_its_share(share: float) -> None:
    sample = TraceSample(share)
    found = sum(sample.has(b"request-%d" % i) for i in range(20_000))
    assert found == pytest.approx(20_000 * share, rel=0.1)


@given(st.integers(1, 100))
def test_of_requests_without_a_name_it_counts(every: int) -> None:
    sample = TraceSample(1 / every)
    found = sum(sample.has(b"") for _ in range(1000))
    assert found in (1000 // every, 1000 // every - 1, 1000 // every + 1)
