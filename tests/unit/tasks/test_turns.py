"""The turns of origins, and of callers within one: names do not multiply them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.tasks.turns import Head, Turns

MOST_ROWS = 9
Task = tuple[str, str, int]  # origin, caller, rows
TASKS = st.lists(
    st.tuples(st.sampled_from("xyz"), st.sampled_from("abc"), st.integers(1, MOST_ROWS)),
    max_size=60,
)


class Line:
    """The tasks of one model that wait, and their turns. reads: what was asked for."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.waiting: dict[str, list[Head]] = {}
        self.tasks: list[Task] = []
        self.reads: list[tuple[int, int, int]] = []

    def add(self, *tasks: Task) -> None:
        for origin, caller, rows in tasks:
            turn = self.turns.join("m", origin, caller, rows)
            self.waiting.setdefault(origin, []).append(Head(len(self.tasks), turn, rows, 1))
            self.tasks.append((origin, caller, rows))

    def read(self, origins: Sequence[str], most: int, skip: int) -> list[list[Head]]:
        self.reads.append((len(origins), most, skip))
        lines = (self.waiting.get(origin, []) for origin in origins)
        return [sorted(line, key=lambda h: (h.turn, h.n))[skip : skip + most] for line in lines]

    def take(self, tasks: int, most_bytes: int = 10**6) -> list[Task]:
        heads = self.turns.take("m", tasks, most_bytes, self.read)
        for head in heads:
            self.waiting[self.tasks[head.n][0]].remove(head)
        return [self.tasks[head.n] for head in heads]

    def take_all(self, sizes: Sequence[int]) -> list[Task]:
        """All of them, in claims of so many, again and again."""
        found: list[Task] = []
        while part := self.take(sizes[len(found) % len(sizes)]):
            found += part
        assert not any(self.waiting.values())
        return found


def served(sent: Sequence[Task], sizes: Sequence[int] = (1,)) -> list[Task]:
    """The order in which tasks are claimed that are all there before the first of them is."""
    line = Line()
    line.add(*sent)
    return line.take_all(sizes)


def most_ahead(order: Sequence[Task], level: int) -> int:
    """The most rows that one origin, or caller, was ahead of another one that waited."""
    left = Counter(task[level] for task in order)
    rows: Counter[str] = Counter()
    ahead = 0
    for task in order:
        name = task[level]
        rows[name] += task[2]
        left[name] -= 1
        others = [rows[other] for other in left if left[other] > 0]
        if left[name] > 0 and others:
            ahead = max(ahead, rows[name] - min(others))
    return ahead


@given(TASKS, st.lists(st.integers(1, 70), min_size=1, max_size=5))
def test_while_two_origins_wait_none_is_ahead_by_more_than_two_tasks(
    sent: list[Task], sizes: list[int]
) -> None:
    """Whatever names its callers have, and however many are claimed at a time."""
    order = served(sent, sizes)
    assert sorted(order) == sorted(sent)
    assert most_ahead(order, 0) <= 2 * MOST_ROWS


@given(TASKS)
def test_names_of_an_origin_change_nothing_for_the_others(sent: list[Task]) -> None:
    """Of tasks of one size: origins are served in one order, whatever names there are."""
    sent = [(origin, caller, 1) for origin, caller, _ in sent]
    named = [(o, f"name {n}" if o == "x" else c, 1) for n, (o, c, _) in enumerate(sent)]
    assert [task[0] for task in served(named)] == [task[0] for task in served(sent)]


@given(TASKS)
def test_the_names_of_one_origin_have_equal_shares_of_it(sent: list[Task]) -> None:
    order = [task for task in served(sent) if task[0] == "x"]
    assert most_ahead(order, 1) <= 2 * MOST_ROWS


@given(TASKS, st.integers(1, 20))
def test_each_callers_own_tasks_keep_their_order(sent: list[Task], size: int) -> None:
    found = served(sent, [size])
    for origin in "xyz":
        for name in "abc":
            mine = [task for task in sent if task[:2] == (origin, name)]
            assert [task for task in found if task[:2] == (origin, name)] == mine


@given(TASKS, st.lists(st.integers(1, 70), min_size=1, max_size=5))
def test_claims_of_any_size_keep_one_order(sent: list[Task], sizes: list[int]) -> None:
    assert served(sent, sizes) == served(sent)


def test_a_thousand_names_get_the_turns_of_one() -> None:
    order = served([("x", f"name {n}", 1) for n in range(1000)] + [("y", "me", 1)] * 100, [7])
    assert {task[0] for task in order[:200:2]} == {"x"}
    assert {task[0] for task in order[1:200:2]} == {"y"}


def test_one_that_comes_later_joins_where_the_others_are() -> None:
    line = Line()
    line.add(*[("x", "a", 10)] * 5)
    line.take(2)
    line.add(("y", "b", 1), ("y", "b", 1), ("x", "new", 10))
    assert [line.take(1)[0][:2] for _ in range(5)] == [
        ("y", "b"), ("y", "b"), ("x", "new"), ("x", "a"), ("x", "a")
    ]  # fmt: skip


@pytest.mark.parametrize("late", [("y", "b"), ("x", "new")])
def test_one_that_comes_late_catches_up_with_nobody(late: tuple[str, str]) -> None:
    """Neither an origin nor a name within one has turns of the time before."""
    line = Line()
    line.add(*[("x", "a", 10)] * 7)
    assert len(line.take(4)) == 4
    line.add(*[(*late, 10)] * 4)
    assert [line.take(1)[0][:2] for _ in range(5)].count(late) in (2, 3)


def test_one_that_comes_back_is_where_it_was_if_that_is_later() -> None:
    """Else it would be first with each task that it sends after it got the one before."""
    line = Line()
    line.add(("x", "a", 50), *[("y", "b", 10)] * 8)
    assert line.take(1) == [("x", "a", 50)]
    line.add(("x", "a", 50))
    assert [line.take(1)[0][0] for _ in range(6)] == ["y", "y", "y", "y", "y", "x"]


def test_a_model_of_which_nothing_waits_begins_anew() -> None:
    line = Line()
    line.add(("x", "a", 50))
    line.take(1)
    line.add(("x", "a", 1), ("y", "b", 1))
    assert [task[0] for task in line.take(2)] == ["x", "y"]
    assert line.take(1) == []
    assert not line.turns._models


def test_each_model_has_its_own_turns() -> None:
    line = Line()
    line.add(*[("x", "a", 1)] * 3)
    assert line.turns.join("m", "x", "a", 1) == 3
    assert line.turns.join("other", "x", "a", 1) == 0
    assert line.turns.take("none", 9, 9, line.read) == []
    assert line.turns.take("m", 0, 9, line.read) == []


def test_tasks_that_went_otherwise_hold_up_nobody() -> None:
    """Taken back by their callers, or too old: the turns are not told."""
    line = Line()
    for origin in "abcdefgh":
        line.add(*[(origin, "a", 1)] * 3)
    for origin in "abcdef":
        line.waiting[origin].clear()
    assert [task[0] for task in line.take(4)] == ["g", "h", "g", "h"]
    line.add(("a", "a", 1))
    assert sorted(task[0] for task in line.take(9)) == ["a", "g", "h"]


def test_so_many_bytes_are_taken_but_one_task_at_least() -> None:
    line = Line()
    line.add(*[("x", "a", 1), ("y", "b", 1)] * 3)
    assert len(line.take(6, 0)) == 1
    assert len(line.take(6, 3)) == 3
    assert len(line.take(6)) == 2


def test_a_claim_reads_few_tasks_of_each_origin() -> None:
    line = Line()
    line.add(*[("x", "a", 1)] * 200, *[("y", "b", 1)] * 200, *[("z", "c", 1)] * 2)
    assert len(line.take(64)) == 64
    assert line.reads[0] == (3, 23, 0)
    assert len(line.reads) <= 3
    assert sum(n * most for n, most, _ in line.reads) <= 2 * 64


@pytest.mark.parametrize("rows", [1, 10**6])
def test_origins_of_which_nothing_waits_are_forgotten(rows: int) -> None:
    """Also where one that waits has its turn far behind all of them."""
    line = Line()
    line.add(*[("waits", "a", rows)] * 2)
    line.take(1)
    for n in range(10_000):
        if rows == 1:
            line.add(("waits", "a", 1))
        line.add((f"origin {n}", "a", 1))
        line.take(1 + (rows == 1))
    origins = line.turns._models["m"]
    assert len(origins._lines) <= 2
    assert len(origins._left) < 5000


def test_names_that_have_ended_are_forgotten() -> None:
    line = Line()
    line.add(("x", "first", 1))
    for n in range(20_000):
        line.turns.join("m", "x", f"name {n}", 1)
        line.turns._models["m"].line("x").claimed(n)
    assert len(line.turns._models["m"].line("x")._ends) < 10_000


def test_after_a_restart_names_still_have_the_turns_of_their_origin() -> None:
    line = Line()
    line.add(*[("x", f"name {n}", 1) for n in range(50)], *[("y", "me", 1)] * 50)
    line.take(20)
    lines = [
        ("m", origin, caller, head.turn, head.turn + head.rows)
        for origin, heads in line.waiting.items()
        for head in heads
        for caller in [line.tasks[head.n][1]]
    ]
    line.turns.load(lines)
    line.add(("y", "new", 1))
    order = line.take_all([8])
    assert [task[0] for task in order[:80]].count("x") == 40
    assert order.index(("y", "new", 1)) < 6, "its line was empty"
