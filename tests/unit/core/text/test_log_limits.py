"""Repeats: the first few of a kind are said, the others counted once a period; none is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batchpool.core.text.log_limits import FIRST, PERIOD_S, LogLimiter


class Listener:
    """Who says what a `LogLimiter` lets through, by a clock of the test's."""

    def __init__(self) -> None:
        self.repeats: LogLimiter[str] = LogLimiter()
        self.now_s = 0.0
        self.said: list[str] = []
        self.counts: list[tuple[int, str]] = []

    def hear(self, kind: str, message: str) -> None:
        self.counts += self.repeats.due(self.now_s)
        if self.repeats.place(kind, self.now_s):
            self.said.append(message)
        else:
            self.repeats.hold(kind, message)


def test_the_first_are_said_and_the_others_counted() -> None:
    listener = Listener()
    for i in range(FIRST + 7):
        listener.hear("raised", f"row {i}")
    assert listener.said == [f"row {i}" for i in range(FIRST)]
    assert listener.repeats.is_holding()
    assert listener.repeats.due(PERIOD_S - 0.001) == []
    assert listener.repeats.due(PERIOD_S) == [(7, f"row {FIRST + 6}")]
    assert not listener.repeats.is_holding()


def test_a_flood_that_goes_on_has_one_count_a_period() -> None:
    listener = Listener()
    for i in range(30_000):  # a thousand a second for half a minute
        listener.now_s = i / 1000
        listener.hear("raised", str(i))
    assert listener.said == [str(i) for i in range(FIRST)]
    assert [count for count, _ in listener.counts] == [10_000 - FIRST, 10_000]
    assert listener.repeats.rest(30.0) == [(10_000, "29999")]


def test_a_kind_that_was_silent_for_a_period_starts_anew() -> None:
    listener = Listener()
    for _ in range(FIRST + 1):
        listener.hear("raised", "before")
    listener.counts += listener.repeats.due(PERIOD_S)
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
    counted = sum(count for count, _ in listener.repeats.rest(0.0))
    assert len(listener.said) + counted == 5000
    assert len(listener.said) == 1000 + FIRST


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 15)), max_size=200))
def test_every_message_is_said_or_counted_once(heard: list[tuple[str, float]]) -> None:
    listener = Listener()
    for i, (kind, pause_s) in enumerate(heard):
        listener.now_s += pause_s
        listener.hear(kind, str(i))
    listener.counts += listener.repeats.rest(listener.now_s)
    counted = sum(count for count, _ in listener.counts)
    assert len(listener.said) + counted == len(heard)
    assert len(set(listener.said)) == len(listener.said)
