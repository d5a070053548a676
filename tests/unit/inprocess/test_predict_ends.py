"""predict when callers leave, loops end or are many, processes fork, and both ways are mixed."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import uvloop

import batchpool as bp
from tests.unit.inprocess.clock import MS, Clock, run, turns
from tests.unit.inprocess.test_predict import Gate, Model, calls

ROOT = Path(__file__).resolve().parents[3]
WAIT_S = 60  # ends a hang, decides nothing


# -- callers that leave -----------------------------------------------------------------------


def test_a_cancelled_call_is_not_run_and_is_no_company() -> None:
    clock = Clock()
    model = Model(clock)
    b = bp.InferenceBatcher(model, max_batch_size=3, max_wait_ms=50, clock_ns=clock)

    async def main() -> list[int]:
        first, second = calls(b, 1, 2)
        await asyncio.sleep(0.01)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        third, fourth = calls(b, 3, 4)  # with the first it would have been full before
        return await asyncio.gather(second, third, fourth)

    assert run(clock, main()) == [4, 6, 8]
    assert model.batches == [(10 * MS, [2, 3, 4])]


def test_the_wait_is_that_of_the_oldest_who_is_still_there() -> None:
    clock = Clock()
    model = Model(clock)
    b = bp.InferenceBatcher(model, max_batch_size=3, max_wait_ms=50, clock_ns=clock)

    async def main() -> int:
        (first,) = calls(b, 1)
        await asyncio.sleep(0.01)
        (second,) = calls(b, 2)
        await asyncio.sleep(0.01)
        first.cancel()
        answer: int = await second
        return answer

    assert run(clock, main()) == 4
    assert model.batches == [(60 * MS, [2])]


@pytest.mark.parametrize("how_many", [1, 2])
def test_cancelled_in_the_turn_in_which_the_batch_leaves(how_many: int) -> None:
    clock = Clock()
    model = Model(clock)
    b = bp.InferenceBatcher(model, max_batch_size=2, max_wait_ms=50, clock_ns=clock)

    async def main() -> list[Any]:
        both = calls(b, 1, 2)
        await turns(1)  # both wait now, and the look comes next
        for call in both[:how_many]:
            call.cancel()
        return await asyncio.gather(*both, return_exceptions=True)

    answers = run(clock, main())
    assert [isinstance(answer, asyncio.CancelledError) for answer in answers] == [
        True,
        how_many == 2,
    ]
    assert model.batches == [(0, [2])][: 2 - how_many]
    assert how_many == 2 or answers[1] == 4


def test_a_call_cancelled_while_its_batch_runs_costs_the_others_nothing() -> None:
    clock = Clock()
    model = Gate()
    b = bp.InferenceBatcher(model, max_batch_size=3, clock_ns=clock)

    async def main() -> list[Any]:
        started = calls(b, 1, 2, 3)
        await turns(3)
        assert model.batches == [[1, 2, 3]]
        started[1].cancel()
        await turns(2)
        model.let_through()
        return await asyncio.gather(*started, return_exceptions=True)

    first, second, third = run(clock, main())
    assert (first, third) == (2, 6)
    assert isinstance(second, asyncio.CancelledError)


def test_when_all_have_left_no_timer_stays() -> None:
    clock = Clock()
    b = bp.InferenceBatcher(Model(clock), max_wait_ms=50, clock_ns=clock)

    async def main() -> None:
        started = calls(b, 1, 2)
        await turns(3)
        for call in started:
            call.cancel()
        await asyncio.gather(*started, return_exceptions=True)

    run(clock, main())  # asserts it
    assert clock.now_ns == 0


def test_a_timed_out_call_has_left() -> None:
    clock = Clock()
    model = Model(clock)
    b = bp.InferenceBatcher(model, max_wait_ms=50, clock_ns=clock)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(b.predict(1), 0.01)

    run(clock, main())
    assert model.batches == []


# -- loops that end, and several of them ------------------------------------------------------


def test_a_loop_may_end_while_a_batch_runs_and_the_next_one_starts_anew() -> None:
    clock = Clock()
    batches: list[list[int]] = []

    async def model(inputs: list[int]) -> list[int]:
        batches.append(inputs)
        if 1 in inputs:
            await asyncio.get_running_loop().create_future()  # for ever
        return [2 * x for x in inputs]

    b = bp.InferenceBatcher(model, max_batch_size=2, clock_ns=clock)

    async def leaves() -> list[asyncio.Task[Any]]:
        started = calls(b, 1, 2, 3)  # a batch, and one that waits
        await turns(3)
        assert batches == [[1, 2]]
        return started

    async def stays() -> list[int]:
        return await asyncio.gather(*calls(b, 4, 5))

    left = asyncio.run(leaves())
    assert all(call.cancelled() for call in left)
    assert run(clock, stays()) == [8, 10]
    assert batches == [[1, 2], [4, 5]]


def test_a_loop_that_was_closed_in_the_middle_is_forgotten() -> None:
    b = bp.InferenceBatcher(lambda inputs: inputs, max_batch_size=2)

    class Input:
        pass

    loop = asyncio.new_event_loop()
    given = Input()
    gone = weakref.ref(given)
    call = loop.create_task(b.predict(given))
    loop.run_until_complete(turns(2))
    del given
    assert not call.done()
    loop.set_exception_handler(lambda _, context: None)  # "Task was destroyed": it was
    loop.close()

    async def main() -> list[int]:
        return await asyncio.gather(*calls(b, 1, 2))

    assert asyncio.run(main()) == [1, 2]
    del call
    gc.collect()
    assert gone() is None


def test_a_loop_that_ended_is_not_held() -> None:
    b = bp.InferenceBatcher(lambda inputs: inputs, max_batch_size=2)

    async def main() -> weakref.ref[asyncio.AbstractEventLoop]:
        assert await asyncio.gather(*calls(b, 1, 2)) == [1, 2]
        return weakref.ref(asyncio.get_running_loop())

    gone = asyncio.run(main())
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("kind", ["ordinary", "async"])
def test_a_failed_batch_lets_go_of_its_inputs(kind: str) -> None:
    """At once: they may be most of a device's memory, and it may be what the model ran out of."""

    class Input:
        pass

    def ordinary(inputs: list[Input]) -> list[int]:
        raise MemoryError

    async def on_loop(inputs: list[Input]) -> list[int]:
        raise MemoryError

    model: Any = ordinary if kind == "ordinary" else on_loop
    b = bp.InferenceBatcher(model, max_wait_ms=0)

    async def main() -> None:
        given = Input()
        gone = weakref.ref(given)
        call = asyncio.create_task(b.predict(given))
        del given
        await asyncio.wait([call])
        assert isinstance(call.exception(), MemoryError)
        del call
        await turns(2)
        assert gone() is None

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


def test_nothing_holds_a_batcher_that_was_used() -> None:
    async def main() -> weakref.ref[bp.InferenceBatcher]:
        b = bp.InferenceBatcher(lambda inputs: inputs, max_batch_size=2)
        assert await asyncio.gather(*calls(b, 1, 2)) == [1, 2]
        await turns(1)
        return weakref.ref(b)

    gone = asyncio.run(main())
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("kind", ["ordinary", "async"])
def test_loops_in_eight_threads_lose_and_cross_nothing(kind: str) -> None:
    running = threading.Lock()

    def ordinary(inputs: list[tuple[int, int]]) -> list[tuple[str, int, int]]:
        assert running.acquire(blocking=False), "two batches at the same time"
        try:
            assert len(inputs) <= 16
            return [("out", *each) for each in inputs]
        finally:
            running.release()

    async def on_loop(inputs: list[tuple[int, int]]) -> list[tuple[str, int, int]]:
        await asyncio.sleep(0)
        return [("out", *each) for each in inputs]

    model: Any = ordinary if kind == "ordinary" else on_loop
    b = bp.InferenceBatcher(model, max_batch_size=16, max_wait_ms=1)
    right: list[int] = []

    async def main(thread: int) -> None:
        started = [asyncio.create_task(b.predict((thread, n))) for n in range(500)]
        await turns(thread)
        for call in started[::10]:
            call.cancel()
        answers = await asyncio.gather(*started, return_exceptions=True)
        for number, answer in enumerate(answers):
            left = number % 10 == 0 and isinstance(answer, asyncio.CancelledError)
            assert left or answer == ("out", thread, number)
        right.append(thread)

    def work(thread: int) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if thread % 2 else None) as runner:
            runner.run(main(thread))

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT_S)
        assert not each.is_alive()
    assert sorted(right) == list(range(8))


# -- both ways on one object ------------------------------------------------------------------


def test_by_hand_and_awaited_do_not_take_each_others_requests() -> None:
    clock = Clock()
    model = Model(clock)
    b = bp.InferenceBatcher(model, max_batch_size=2, max_wait_ms=50, clock_ns=clock)

    async def main() -> None:
        (call,) = calls(b, 1)
        b.add_request(10, "a")
        await turns(3)
        assert b.should_process() is False
        assert b.process_batch() == [{"id": "a", "output": 20}]
        assert b.process_batch() == []
        assert not call.done()
        b.add_request(11, "b")
        assert await call == 2
        assert b.process_batch() == [{"id": "b", "output": 22}]

    run(clock, main())
    assert [inputs for _, inputs in model.batches] == [[10], [1], [11]]


# -- fork -------------------------------------------------------------------------------------

FORKED = """
import asyncio, os, signal
import batchpool as bp

batcher = bp.InferenceBatcher(lambda inputs: [2 * x for x in inputs], max_wait_ms=0)
assert asyncio.run(batcher.predict(1)) == 2  # its thread has started
child = os.fork()
if child == 0:
    signal.alarm(60)  # ends a hang
    os._exit(asyncio.run(batcher.predict(4)))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8
assert asyncio.run(batcher.predict(3)) == 6
"""


def test_the_child_of_a_fork_goes_on() -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED]
    subprocess.run(command, cwd=ROOT, check=True)
