"""The turns of callers: whatever they send, each is served a share of the rows."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from batchpool.tasks.turns import Turns

Sent = list[tuple[str, int]]


def served(sent: Sent) -> Sent:
    """The order in which tasks are claimed that are all there before the first of them is."""
    turns, busy = Turns(), set()
    lines = []
    for n, (caller, rows) in enumerate(sent):
        lines.append((turns.join("m", caller, rows, is_idle=caller not in busy), n))
        busy.add(caller)
    return [sent[n] for _, n in sorted(lines)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), max_size=60))
def test_while_two_callers_wait_none_is_ahead_by_more_than_two_tasks(sent: Sent) -> None:
    left = Counter(caller for caller, _ in sent)
    rows: Counter[str] = Counter()
    for caller, size in served(sent):
        rows[caller] += size
        left[caller] -= 1
        waiting = [name for name in "abc" if left[name] > 0]
        for other in waiting:
            if caller in waiting:
                assert rows[caller] - rows[other] <= 2 * 9


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), max_size=60))
def test_each_callers_own_tasks_keep_their_order(sent: Sent) -> None:
    found = served(sent)
    for name in "abc":
        assert [t for t in found if t[0] == name] == [t for t in sent if t[0] == name]


def test_a_caller_that_comes_later_joins_where_the_others_are() -> None:
    turns = Turns()
    assert [turns.join("m", "a", 10, is_idle=not n) for n in range(3)] == [0, 10, 20]
    turns.claimed("m", 10)
    assert turns.join("m", "b", 1, is_idle=True) == 10
    assert turns.join("m", "b", 1, is_idle=False) == 11
    assert turns.join("other", "a", 1, is_idle=False) == 0, "each model has its own lines"


def test_lines_that_have_ended_are_forgotten() -> None:
    turns = Turns()
    for n in range(20_000):
        turns.claimed("m", turns.join("m", f"caller {n}", 1, is_idle=True))
        turns.claimed("m", n)
    assert len(turns._ends) < 10_000
