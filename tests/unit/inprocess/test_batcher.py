"""InferenceBatcher by hand: add_request, should_process, process_batch, drop_failed."""

from __future__ import annotations

import doctest
import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import batchpool as bp
import batchpool.inprocess
from tests.unit.inprocess.clock import MS, Clock

JOIN_S = 60  # ends a hang, decides nothing


def doubled(inputs: list[int]) -> list[int]:
    return [2 * x for x in inputs]


def ids(results: list[dict[str, Any]]) -> list[Any]:
    return [result["id"] for result in results]


def test_the_documented_example() -> None:
    assert doctest.testmod(batchpool.inprocess) == (0, 13)


# -- wait or full -----------------------------------------------------------------------------


def test_a_batch_is_due_at_the_very_nanosecond() -> None:
    clock = Clock()
    b = bp.InferenceBatcher(doubled, max_batch_size=3, max_wait_ms=50, clock_ns=clock)
    assert b.should_process() is False
    clock.now_ns = 7
    b.add_request(1, "a")
    clock.now_ns = 7 + 50 * MS - 1
    assert b.should_process() is False
    b.add_request(2, "b")
    assert b.should_process() is False
    clock.now_ns += 1
    assert b.should_process() is True
    assert b.process_batch() == [{"id": "a", "output": 2}, {"id": "b", "output": 4}]
    assert b.should_process() is False
    assert b.process_batch() == []


def test_a_full_batch_is_due_at_once_and_the_rest_waits_for_itself() -> None:
    clock = Clock()
    b = bp.InferenceBatcher(doubled, max_batch_size=2, max_wait_ms=50, clock_ns=clock)
    for number in range(3):
        assert b.should_process() is (number == 2)
        b.add_request(number, number)
    assert ids(b.process_batch()) == [0, 1]
    assert b.should_process() is False
    assert ids(b.process_batch()) == [2]  # due or not


def test_without_a_wait_one_request_is_due() -> None:
    b = bp.InferenceBatcher(doubled, max_wait_ms=0, clock_ns=Clock())
    b.add_request(1, None)
    assert b.should_process() is True


Step = tuple[str, int]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5)),
        st.tuples(st.just("pass"), st.integers(0, 4)),  # nanoseconds
        st.tuples(st.just("process"), st.just(0)),
        st.tuples(st.just("fail"), st.just(0)),
        st.tuples(st.just("drop"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=100, deadline=None)
@given(steps, st.integers(1, 4), st.integers(0, 5))
def test_as_a_plain_queue_would_do_it(script: list[Step], size: int, wait_ns: int) -> None:
    """FIFO, at most `size`, every id once, wait-or-full to the nanosecond, failures put back."""
    clock, failing = Clock(), False
    batches: list[list[int]] = []

    def model(inputs: list[int]) -> list[int]:
        batches.append(list(inputs))
        if failing:
            raise RuntimeError("no")
        return doubled(inputs)

    b = bp.InferenceBatcher(model, size, wait_ns / 1e6, clock_ns=clock)
    queued: deque[tuple[int, int]] = deque()  # input, time
    failed: set[int] = set()
    numbers = itertools.count()
    for what, count in script:
        first = list(itertools.islice(queued, size))
        if what == "add":
            for number in itertools.islice(numbers, count):
                b.add_request(number, f"id {number}")
                queued.append((number, clock.now_ns))
        elif what == "pass":
            clock.now_ns += count
        elif what == "drop":
            gone = [number for number, _ in queued if number in failed]
            assert b.drop_failed() == [{"id": f"id {n}", "input": n} for n in gone]
            queued = deque(one for one in queued if one[0] not in failed)
        elif what == "process" or not first:
            expected = [{"id": f"id {n}", "output": 2 * n} for n, _ in first]
            assert b.process_batch() == expected
            assert not first or batches[-1] == [n for n, _ in first]
            for _ in first:
                queued.popleft()
        else:
            failing = True
            with pytest.raises(RuntimeError, match="no"):
                b.process_batch()
            failing = False
            assert batches[-1] == [n for n, _ in first]
            failed |= {n for n, _ in first}
        full = len(queued) >= size
        waited = bool(queued) and clock.now_ns - queued[0][1] >= wait_ns
        assert b.should_process() is (full or waited)


def test_ids_come_back_untouched_and_may_repeat() -> None:
    b = bp.InferenceBatcher(doubled)
    mine: list[int] = []  # not even hashable
    for number, request_id in enumerate([mine, "twice", None, "twice"]):
        b.add_request(number, request_id)
    results = b.process_batch()
    assert results[0]["id"] is mine
    assert ids(results[1:]) == ["twice", None, "twice"]
    assert [result["output"] for result in results] == [0, 2, 4, 6]


# -- failures ---------------------------------------------------------------------------------


def test_a_failed_batch_is_tried_again_with_those_that_came_since() -> None:
    failures = [KeyboardInterrupt(), ValueError("no"), None]

    def model(inputs: list[int]) -> list[int]:
        given = list(inputs)
        inputs.clear()  # a model may do what it likes with its list
        if failure := failures.pop(0):
            raise failure
        return doubled(given)

    b = bp.InferenceBatcher(model, max_batch_size=3)
    b.add_request(0, "a")
    b.add_request(1, "b")
    with pytest.raises(KeyboardInterrupt):
        b.process_batch()
    with pytest.raises(ValueError, match="no"):
        b.process_batch()
    b.add_request(2, "c")
    b.add_request(3, "d")
    assert ids(b.process_batch()) == ["a", "b", "c"]


def test_a_failed_request_does_not_wait_again() -> None:
    clock = Clock()

    def model(inputs: list[int]) -> list[int]:
        raise ValueError("no")

    b = bp.InferenceBatcher(model, max_wait_ms=1, clock_ns=clock)
    b.add_request(0, "a")
    clock.now_ns = MS
    with pytest.raises(ValueError, match="no"):
        b.process_batch()
    assert b.should_process() is True


def test_only_the_failed_are_dropped() -> None:
    def model(inputs: list[int]) -> list[int]:
        if 1 in inputs:
            raise ValueError("no")
        return doubled(inputs)

    b = bp.InferenceBatcher(model, max_batch_size=8)
    assert b.drop_failed() == []
    b.add_request(0, "a")
    b.add_request(1, "b")
    with pytest.raises(ValueError, match="no"):
        b.process_batch()
    b.add_request(2, "c")
    assert b.drop_failed() == [{"id": "a", "input": 0}, {"id": "b", "input": 1}]
    assert b.drop_failed() == []
    assert b.process_batch() == [{"id": "c", "output": 4}]


@pytest.mark.parametrize("first_to_fail", [0, 1])
def test_batches_that_fail_at_the_same_time_go_back_to_their_places(first_to_fail: int) -> None:
    started: dict[int, threading.Event] = {0: threading.Event(), 2: threading.Event()}
    may_fail = {0: threading.Event(), 2: threading.Event()}
    failing = True

    def model(inputs: list[int]) -> list[int]:
        if failing:
            started[inputs[0]].set()
            assert may_fail[inputs[0]].wait(JOIN_S)
            raise ValueError("no")
        return doubled(inputs)

    def process() -> None:
        with pytest.raises(ValueError, match="no"):
            b.process_batch()

    b = bp.InferenceBatcher(model, max_batch_size=2)
    for number in range(5):
        b.add_request(number, number)
    threads = []
    for head in (0, 2):
        threads.append(threading.Thread(target=process))
        threads[-1].start()
        assert started[head].wait(JOIN_S)
    for which in (first_to_fail, 1 - first_to_fail):
        may_fail[2 * which].set()
        threads[which].join(JOIN_S)
        assert not threads[which].is_alive()
    failing = False
    assert [ids(b.process_batch()) for _ in range(4)] == [[0, 1], [2, 3], [4], []]


def test_a_wrong_number_of_outputs_gives_nobody_anothers() -> None:
    outputs: list[list[int]] = [[1], [1, 2, 3], [5, 6]]
    b = bp.InferenceBatcher(lambda inputs: outputs.pop(0))
    b.add_request(0, "a")
    b.add_request(1, "b")
    with pytest.raises(bp.ModelError, match="returned 1 outputs for 2 inputs"):
        b.process_batch()
    with pytest.raises(bp.ModelError, match="returned 3 outputs for 2 inputs"):
        b.process_batch()
    assert b.process_batch() == [{"id": "a", "output": 5}, {"id": "b", "output": 6}]


def test_an_async_model_is_for_predict() -> None:
    async def model(inputs: list[int]) -> list[int]:
        return doubled(inputs)

    b = bp.InferenceBatcher(model)
    assert b.process_batch() == []
    b.add_request(0, "a")
    with pytest.raises(bp.ModelError, match="async model_fn works with `await predict"):
        b.process_batch()
    assert ids(b.drop_failed()) == ["a"]


# -- threads ----------------------------------------------------------------------------------


def in_threads(work: Callable[[int], None]) -> None:
    """work(0) to work(7) at the same time; an exception of any comes out here."""
    errors: list[BaseException] = []
    start = threading.Barrier(8)

    def guarded(thread: int) -> None:
        try:
            start.wait(JOIN_S)
            work(thread)
        except BaseException as exc:
            errors.append(exc)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # as many switches in the middle of things as there can be
    try:
        threads = [threading.Thread(target=guarded, args=(thread,)) for thread in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(JOIN_S)
            assert not each.is_alive()
    finally:
        sys.setswitchinterval(interval_s)
    if errors:
        raise errors[0]


class Crowd:
    """A batcher whose model fails now and then, and what its threads got from it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._calls = itertools.count()
        self.batcher = bp.InferenceBatcher(self._model, max_batch_size=size)
        self.results: list[list[dict[str, Any]]] = [[] for _ in range(8)]

    def _model(self, inputs: list[tuple[int, int]]) -> list[tuple[str, int, int]]:
        if next(self._calls) % 5 == 4:
            raise RuntimeError("now and then")
        return [("out", *each) for each in inputs]

    def add(self, thread: int, number: int) -> None:
        self.batcher.add_request((thread, number), f"{thread}/{number}")

    def process(self, thread: int) -> bool:
        """False when there was nothing to do."""
        try:
            done = self.batcher.process_batch()
        except RuntimeError:
            return True
        assert len(done) <= self._size
        self.results[thread] += done
        return bool(done)

    def check(self) -> None:
        """All 8 x 500 requests were answered, once and rightly."""
        assert self.batcher.process_batch() == []
        every = [result for part in self.results for result in part]
        assert len(every) == 8 * 500
        assert {result["id"]: result["output"] for result in every} == {
            f"{thread}/{number}": ("out", thread, number)
            for thread in range(8)
            for number in range(500)
        }


def test_eight_threads_that_add_and_process_lose_and_cross_nothing() -> None:
    crowd = Crowd(7)

    def work(thread: int) -> None:
        for number in range(500):
            crowd.add(thread, number)
            if crowd.batcher.should_process():
                crowd.process(thread)
        while crowd.process(thread):
            pass

    in_threads(work)
    crowd.check()


def test_eight_threads_that_empty_one_queue_lose_and_cross_nothing() -> None:
    crowd = Crowd(3)
    for thread in range(8):
        for number in range(500):
            crowd.add(thread, number)

    def work(thread: int) -> None:
        while crowd.process(thread):
            pass

    in_threads(work)
    while crowd.process(0):  # what failed when the others had gone already
        pass
    crowd.check()


# -- arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"model_fn": 7}, TypeError, "model_fn must be callable, not 7"),
        ({"clock_ns": 7}, TypeError, "clock_ns must be callable, not 7"),
        ({"max_batch_size": 0}, ValueError, "max_batch_size must be at least 1, not 0"),
        ({"max_batch_size": 2.0}, TypeError, r"max_batch_size must be a whole number, not 2\.0"),
        ({"max_batch_size": True}, TypeError, "max_batch_size must be a whole number, not True"),
        ({"max_wait_ms": -0.5}, ValueError, r"max_wait_ms must be finite .* not -0\.5"),
        ({"max_wait_ms": float("nan")}, ValueError, "max_wait_ms must be finite .* not nan"),
        ({"max_wait_ms": float("inf")}, ValueError, "max_wait_ms must be finite .* not inf"),
        ({"max_wait_ms": "5"}, TypeError, "max_wait_ms must be a number of .* not '5'"),
    ],
)
def test_arguments_that_cannot_work(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        bp.InferenceBatcher(**{"model_fn": doubled, **arguments})
