"""`await InferenceBatcher.predict(...)`: who rides together, when, and that nothing is left."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import batchpool as bp
from tests.unit.inprocess.clock import MS, Clock, run, turns


class Model:
    """Doubles. Remembers its batches, when they came and in which thread."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.batches: list[tuple[int, list[int]]] = []
        self.threads: set[int] = set()

    def __call__(self, inputs: list[int]) -> list[int]:
        self.batches.append((self.clock.now_ns, list(inputs)))
        self.threads.add(threading.get_ident())
        return [2 * x for x in inputs]


class Gate:
    """An async model that answers a batch only when it is let through."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self._passes: list[asyncio.Future[None]] = []

    async def __call__(self, inputs: list[int]) -> list[int]:
        self.batches.append(inputs)
        self._passes.append(asyncio.get_running_loop().create_future())
        await self._passes[-1]
        return [2 * x for x in inputs]

    def let_through(self, error: BaseException | None = None) -> None:
        if error is None:
            self._passes.pop(0).set_result(None)
        else:
            self._passes.pop(0).set_exception(error)


def calls(b: bp.InferenceBatcher, *inputs: int) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(b.predict(x)) for x in inputs]


# -- when a batch leaves ----------------------------------------------------------------------


def test_a_full_batch_leaves_at_once() -> None:
    clock = Clock()
    model = Model(clock)
    b = bp.InferenceBatcher(model, max_batch_size=3, max_wait_ms=50, clock_ns=clock)

    async def main() -> list[int]:
        return await asyncio.gather(*calls(b, 1, 2, 3))

    assert run(clock, main()) == [2, 4, 6]
    assert model.batches == [(0, [1, 2, 3])]


def test_a_partial_batch_leaves_when_its_oldest_has_waited() -> None:
    clock = Clock()
    model = Model(clock)
    b = bp.InferenceBatcher(model, max_batch_size=3, max_wait_ms=50, clock_ns=clock)

    async def main() -> list[int]:
        first = calls(b, 1)
        await asyncio.sleep(0.02)
        return await asyncio.gather(*first, *calls(b, 2))

    assert run(clock, main()) == [2, 4]
    assert model.batches == [(50 * MS, [1, 2])]


def test_a_call_alone_is_answered_when_it_has_waited() -> None:
    clock = Clock()
    model = Model(clock)

    async def on_loop(inputs: list[int]) -> list[int]:
        return model(inputs)

    b = bp.InferenceBatcher(on_loop, max_batch_size=3, max_wait_ms=50, clock_ns=clock)

    async def main() -> None:
        for x in (1, 2):
            (call,) = calls(b, x)
            await asyncio.sleep(0.049)
            assert not call.done()
            await asyncio.sleep(0.002)
            assert call.result() == 2 * x

    run(clock, main())


def test_the_end_of_a_batch_lets_the_next_one_leave() -> None:
    clock = Clock()
    model = Gate()
    b = bp.InferenceBatcher(model, max_batch_size=1, clock_ns=clock)

    async def main() -> None:
        started = calls(b, 1, 2)
        for batches in ([[1]], [[1], [2]]):
            await turns(4)
            assert model.batches == batches
            model.let_through()
        await turns(4)
        assert [call.result() for call in started] == [2, 4]

    run(clock, main())


def test_without_a_wait_calls_of_one_turn_ride_together() -> None:
    clock = Clock()
    model = Model(clock)
    b = bp.InferenceBatcher(model, max_batch_size=4, max_wait_ms=0, clock_ns=clock)

    async def main() -> list[int]:
        return await asyncio.gather(*calls(b, *range(6)))

    assert run(clock, main()) == [0, 2, 4, 6, 8, 10]
    assert model.batches == [(0, [0, 1, 2, 3]), (0, [4, 5])]


def test_a_timer_that_fires_early_is_set_again() -> None:
    """The loop's clock is not the batcher's: the batcher's decides."""
    clock, slow = Clock(), Clock()
    model = Model(slow)
    b = bp.InferenceBatcher(model, max_wait_ms=50, clock_ns=slow)

    async def main() -> int:
        (call,) = calls(b, 1)
        await asyncio.sleep(0.075)  # the first timer has fired: there, no time has passed
        assert model.batches == []
        slow.now_ns = 50 * MS
        answer: int = await call
        return answer

    assert run(clock, main()) == 2
    assert model.batches == [(50 * MS, [1])]
    assert clock.now_ns == 100 * MS


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.integers(1, 4), st.integers(0, 20))
def test_any_arrivals(gaps_ms: list[int], size: int, wait_ms: int) -> None:
    """Each batch leaves when it is full or its oldest has waited, and nobody before or after.

    The model takes no time here, so every batch finds it idle.
    """
    clock = Clock()
    model = Model(clock)

    async def instant(inputs: list[int]) -> list[int]:
        return model(inputs)

    b = bp.InferenceBatcher(instant, size, wait_ms, clock_ns=clock)
    arrived: list[int] = []

    async def main() -> list[int]:
        started: list[asyncio.Task[Any]] = []
        for number, gap_ms in enumerate(gaps_ms):
            if gap_ms:
                await asyncio.sleep(gap_ms / 1e3)
            arrived.append(clock.now_ns)
            started += calls(b, number)
            await turns(6)
        return await asyncio.gather(*started)

    assert run(clock, main()) == [2 * n for n in range(len(gaps_ms))]
    assert [x for _, inputs in model.batches for x in inputs] == list(range(len(gaps_ms)))
    for at_ns, inputs in model.batches:
        due_ns = arrived[inputs[0]] + wait_ms * MS
        if len(inputs) == size:
            # A row that comes in the very millisecond of the end may be just in time.
            assert at_ns == arrived[inputs[-1]] <= due_ns + 1
        else:
            assert abs(at_ns - due_ns) <= 1  # the loop counts in floating point
        assert len(inputs) <= size


def test_while_a_batch_runs_the_next_one_forms() -> None:
    clock = Clock()
    model = Gate()
    b = bp.InferenceBatcher(model, max_batch_size=2, max_wait_ms=50, clock_ns=clock)

    async def main() -> list[int]:
        started = calls(b, 0, 1)
        await turns(3)
        started += calls(b, 2, 3, 4)
        await turns(3)
        assert model.batches == [[0, 1]]
        model.let_through()
        await turns(3)
        assert model.batches == [[0, 1], [2, 3]]
        clock.now_ns += 60 * MS
        model.let_through()
        await turns(4)
        assert model.batches == [[0, 1], [2, 3], [4]]  # it had waited long enough
        model.let_through()
        return await asyncio.gather(*started)

    assert run(clock, main()) == [0, 2, 4, 6, 8]


# -- where model_fn runs ----------------------------------------------------------------------


def test_the_loop_goes_on_while_the_model_runs() -> None:
    clock = Clock()
    go_on = threading.Event()

    def model(inputs: list[int]) -> list[bool]:
        return [go_on.wait(60)]

    b = bp.InferenceBatcher(model, max_wait_ms=0, clock_ns=clock)

    async def main() -> bool:
        (call,) = calls(b, 1)
        await turns(5)
        go_on.set()  # the loop does that, or nobody
        answer: bool = await call
        return answer

    assert run(clock, main()) is True


def test_an_ordinary_model_meets_one_thread_only() -> None:
    clock = Clock()
    model = Model(clock)
    b = bp.InferenceBatcher(model, max_batch_size=1, clock_ns=clock)

    async def main() -> None:
        await asyncio.gather(*calls(b, *range(20)))

    for _ in range(3):  # also with another loop
        run(clock, main())
    assert len(model.batches) == 60
    assert len(model.threads) == 1
    assert threading.get_ident() not in model.threads


async def _on_loop(inputs: list[int]) -> list[int]:
    await asyncio.sleep(0)
    assert threading.current_thread() is threading.main_thread()
    return [2 * x for x in inputs]


class _Called:
    async def __call__(self, inputs: list[int]) -> list[int]:
        return await _on_loop(inputs)


def _decorated(inputs: list[int]) -> Any:
    return _on_loop(inputs)


@pytest.mark.parametrize("model", [_on_loop, _Called(), _decorated])
def test_an_async_model_is_awaited_on_the_loop(model: Any) -> None:
    clock = Clock()
    b = bp.InferenceBatcher(model, clock_ns=clock)

    async def main() -> list[int]:
        return await asyncio.gather(*calls(b, 1, 2))

    assert run(clock, main()) == [2, 4]


# -- failures ---------------------------------------------------------------------------------


class Odd(Exception):
    pass


def _raises_odd(inputs: list[int]) -> list[int]:
    if 1 in inputs:
        raise Odd("one")
    return [2 * x for x in inputs]


async def _raises_odd_on_loop(inputs: list[int]) -> list[int]:
    return _raises_odd(inputs)


@pytest.mark.parametrize("model", [_raises_odd, _raises_odd_on_loop])
def test_what_the_model_raises_reaches_its_batch_only(model: Any) -> None:
    clock = Clock()
    b = bp.InferenceBatcher(model, max_batch_size=2, clock_ns=clock)

    async def main() -> list[Any]:
        return await asyncio.gather(*calls(b, 0, 1, 2, 3), return_exceptions=True)

    first, second, *others = run(clock, main())
    assert isinstance(first, Odd)
    assert isinstance(second, Odd)
    assert others == [4, 6]


def _short(inputs: list[int]) -> list[int]:
    return inputs[1:]


async def _short_on_loop(inputs: list[int]) -> list[int]:
    return inputs[1:]


def _short_decorated(inputs: list[int]) -> Any:
    return _short_on_loop(inputs)


@pytest.mark.parametrize("model", [_short, _short_on_loop, _short_decorated])
def test_a_wrong_number_of_outputs_reaches_everybody(model: Any) -> None:
    clock = Clock()
    b = bp.InferenceBatcher(model, max_batch_size=3, clock_ns=clock)

    async def main() -> list[Any]:
        return await asyncio.gather(*calls(b, 0, 1, 2), return_exceptions=True)

    for error in run(clock, main()):
        assert isinstance(error, bp.ModelError)
        assert str(error).startswith("model_fn returned 2 outputs for 3 inputs; ")


def test_an_exception_that_no_future_can_carry() -> None:
    clock = Clock()
    answers = iter([[2]])
    b = bp.InferenceBatcher(lambda inputs: next(answers), max_wait_ms=0, clock_ns=clock)

    async def main() -> None:
        assert await b.predict(1) == 2
        with pytest.raises(bp.ModelError, match="raised StopIteration"):
            await b.predict(1)

    run(clock, main())


def test_a_model_that_cancels_itself_does_not_cancel_its_callers() -> None:
    clock = Clock()
    model = Gate()
    b = bp.InferenceBatcher(model, max_wait_ms=0, clock_ns=clock)

    async def main() -> None:
        (call,) = calls(b, 1)
        await turns(3)
        model.let_through(asyncio.CancelledError())
        with pytest.raises(bp.ModelError, match="was cancelled"):
            await call

    run(clock, main())
