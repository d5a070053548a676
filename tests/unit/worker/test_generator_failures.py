"""A generator that raises, refuses sequences, or returns what cannot be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from batchpool.core.errors import Status
from batchpool.core.layout.states import BatchOutcome
from batchpool.worker.device_errors import MustRestart
from tests.unit.worker.sequence_bench import SequenceBench
from tests.unit.worker.toy_generator import Toy, tokens_of


class Scripted(Toy):
    """A toy whose next call of a method does something else, once."""

    def __init__(self, method: str, instead: Callable[..., Any]) -> None:
        super().__init__()
        own = getattr(self, method)

        def once(*arguments: Any) -> Any:
            setattr(self, method, own)
            return instead(*arguments)

        setattr(self, method, once)


def raising(error: BaseException) -> Callable[..., Any]:
    def instead(*arguments: Any) -> Any:
        raise error

    return instead


def run_three(generator: Toy, **options: Any) -> SequenceBench:
    bench = SequenceBench(generator, **options)
    for slot in range(3):
        bench.fill(1, slot, [slot], 4)
        bench.send(1, slot)
    bench.loop.step()
    return bench


@pytest.mark.parametrize("method", ["join", "step"])
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("no such expert"), BatchOutcome.FAILED),
        (MemoryError("no room"), BatchOutcome.NO_MEMORY),
        (KeyboardInterrupt(), BatchOutcome.FAILED),
        (bp.InvalidInput("which one?"), BatchOutcome.FAILED),
    ],
)
def test_all_sequences_fail_together_and_leave(
    method: str, error: BaseException, outcome: BatchOutcome
) -> None:
    generator = Scripted(method, raising(error))
    bench = run_three(generator)
    assert [found for _, found in bench.take_finished()] == [outcome] * 3
    assert bench.end(1, 1)[0] is Status.MODEL_ERROR
    assert (str(error) or "KeyboardInterrupt") in bench.lanes[1].read_message(1)
    assert bench.lanes[1].read_origin(2) == (3, 3, bench.loop._pid)
    assert generator.log[-1] == ("leave", [0, 1, 2])
    bench.fill(1, 5, [9], 4)  # the next ones run
    bench.send(1, 5)
    bench.run()
    assert bench.tokens(1, 5) == tokens_of([9], 4)


def test_rows_that_failed_go_on_behind_the_tokens_that_they_have() -> None:
    generator = Toy()
    bench = run_three(generator)
    generator.step = raising(ValueError("once"))  # type: ignore[method-assign]
    bench.loop.step()
    del generator.step
    bench.take_finished()
    for slot in range(3):
        bench.send(1, slot)
    bench.run()
    assert [bench.tokens(1, slot) for slot in range(3)] == [tokens_of([s], 4) for s in range(3)]
    assert [bench.end(1, slot)[0] for slot in range(3)] == [Status.OK] * 3


def test_a_sequence_that_join_refuses_ends_alone() -> None:
    def join(sequences: Sequence[bp.JoiningSequence]) -> Any:
        generator.running[0] = [0], 0, 0
        return {
            1: bp.InvalidInput("a word that is none", details={"at": 3}),
            2: ValueError("too odd"),
        }

    generator = Scripted("join", join)
    bench = run_three(generator)
    bench.run()
    assert bench.tokens(1, 0) == tokens_of([0], 4)
    assert [bench.end(1, slot)[0] for slot in (1, 2)] == [
        Status.INVALID_INPUT,
        Status.MODEL_ERROR,
    ]
    assert bench.lanes[1].read_message(1) == "a word that is none"
    assert bench.lanes[1].read_details(1) == b'{"at":3}'
    assert [outcome for _, outcome in bench.take_finished()] == [BatchOutcome.OK] * 3
    assert ("leave", [1, 2]) not in generator.log  # they had not joined


def test_the_refusal_of_the_only_one_that_joins_ends_it_alone() -> None:
    generator = Toy()
    bench = run_three(generator)
    generator.join = raising(bp.InvalidInput("empty"))  # type: ignore[method-assign]
    bench.fill(4, 0, [1], 4)
    bench.send(4, 0)
    bench.run()
    assert bench.end(4, 0)[0] is Status.INVALID_INPUT
    assert bench.tokens(1, 2) == tokens_of([2], 4)


def test_a_broken_device_ends_the_worker_before_the_rows_are_told() -> None:
    error = RuntimeError("CUDA error: device-side assert triggered")
    with pytest.raises(MustRestart, match="the device is broken"):
        run_three(Scripted("step", raising(error)))


def test_leave_that_fails_ends_the_worker() -> None:
    bench = run_three(Scripted("leave", raising(KeyError(7))))
    with pytest.raises(MustRestart, match="leave failed: KeyError: 7"):
        bench.run()


@pytest.mark.parametrize("method", ["join", "step"])
def test_where_leave_fails_too_the_first_exception_is_told(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An incomplete join is what leave stumbles over: a message about that hides the cause."""
    noted: list[tuple[BaseException, str, int]] = []
    bench = SequenceBench(
        Scripted(method, raising(ValueError("no such expert"))),
        note_traceback=lambda *found: noted.append(found),
    )
    calls: list[Any] = []

    def leave(numbers: Sequence[int]) -> None:
        calls.append(list(numbers))
        raise KeyError(7)

    bench.generator.leave = leave  # type: ignore[method-assign]
    for slot in range(3):
        bench.fill(1, slot, [slot], 4)
        bench.send(1, slot)
    text = "ValueError: no such expert; then leave failed too: KeyError: 7"
    with pytest.raises(MustRestart, match=text):
        bench.run()
    assert calls == [[0, 1, 2]]
    assert [outcome for _, outcome in bench.take_finished()] == [BatchOutcome.FAILED] * 3
    assert bench.lanes[1].read_message(1) == "ValueError: no such expert"
    assert [record.getMessage() for record in caplog.records] == [
        "3 sequences failed: ValueError: no such expert",
        "leave failed: KeyError: 7",
    ]
    ((error, told, token),) = noted
    assert (str(error), told) == ("no such expert", "ValueError: no such expert")
    origin = bench.lanes[1].read_origin(0)
    assert origin is not None
    assert token == origin[0]


def test_a_prompt_that_a_client_left_too_short_never_joins() -> None:
    bench = SequenceBench()
    bench.fill(1, 0, [], 4)
    bench.fill(1, 1, [5], 4)
    bench.fill(1, 2, [], 4)
    for slot in range(3):
        bench.send(1, slot)
    bench.run()
    assert [bench.end(1, slot)[0] for slot in range(3)] == [
        Status.INVALID_INPUT, Status.OK, Status.INVALID_INPUT,
    ]  # fmt: skip
    assert bench.lanes[1].read_message(0) == "input 'prompt' has size 0; at least 1 was expected"
    assert bench.generator.log[-2:] == [("join", [1]), ("leave", [1])]  # type: ignore[attr-defined]
    bench.fill(4, 0, [], 4)
    bench.send(4, 0)
    bench.run()
    assert bench.end(4, 0)[0] is Status.INVALID_INPUT
    assert [outcome for _, outcome in bench.take_finished()] == [BatchOutcome.OK] * 4


def test_a_generator_that_fails_again_and_again_is_tried_with_its_warm_up() -> None:
    def warm_up() -> None:
        raise ValueError("broken")

    generator = Toy()
    generator.step = raising(ValueError("broken"))  # type: ignore[method-assign]
    bench = run_three(generator, run_warm_up=warm_up)
    bench.fill(1, 5, [9], 4)
    bench.send(1, 5)
    with pytest.raises(MustRestart, match="2 batches failed in a row, and the warm-up row too"):
        bench.run()


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (None, "step of generator 'scripted' returned a NoneType; a bp.StepTokens was expected"),
        (bp.StepTokens([0, 9], [1, 2]), "numbers with 9, which is no running sequence"),
        (bp.StepTokens([-1], [1]), "numbers with -1, which is no running sequence"),
        (bp.StepTokens([3], [1]), "numbers with 3, which is no running sequence"),
        (bp.StepTokens([0, 1, 0], [1, 2, 3]), "numbers with 0 twice"),
        (bp.StepTokens([0.5], [1]), "numbers of shape [1] and dtype float64"),
        (bp.StepTokens([0, 1], [1]), "returned tokens of shape [1]; [2] was expected"),
        (bp.StepTokens([0], [[1]]), "returned tokens of shape [1, 1]; [1] was expected"),
        (bp.StepTokens([0], [1.5]), "'token'"),
        (bp.StepTokens([0], np.array([2**40])), "'token'"),
        (bp.StepTokens([0], [1], counts=[0]), "returned a count of 0"),
        (bp.StepTokens([0, 1], [1, 2], counts=[2]), "returned 1 counts"),
        (bp.StepTokens([0], [1], counts=[2]), "returned tokens of shape [1]; [2] was expected"),
        (bp.StepTokens([0], [1], stopped=[7]), "stopped with 7, which is no running sequence"),
    ],
)
def test_a_wrong_result_of_step_is_named_and_reaches_no_lane(found: Any, text: str) -> None:
    bench = run_three(Scripted("step", lambda: found))
    assert text in bench.lanes[1].read_message(0)
    assert [bench.length(1, slot) for slot in range(3)] == [0, 0, 0]
    assert [outcome for _, outcome in bench.take_finished()] == [BatchOutcome.FAILED] * 3


@pytest.mark.parametrize(
    "found",
    [[1], {7: ValueError("x")}, {0: "no"}, {0.0: ValueError("x")}, {False: ValueError("x")}],
    ids=["list", "unknown", "no error", "a float", "a truth"],
)
def test_a_wrong_result_of_join_is_named(found: Any) -> None:
    bench = run_three(Scripted("join", lambda sequences: found))
    assert "join of generator 'scripted' returned" in bench.lanes[1].read_message(0)


def test_tokens_of_another_whole_dtype_and_lists_are_taken() -> None:
    found = iter(
        [
            bp.StepTokens([0, 1, 2], np.array([1, 2, 3], np.int64)),
            bp.StepTokens((), []),
            bp.StepTokens(np.array([2, 1], np.uint8), [5, 6]),
            bp.StepTokens([1], [8], stopped=[0]),
        ]
    )
    generator = Toy()
    generator.step = lambda: next(found)  # type: ignore[method-assign]
    bench = run_three(generator)
    bench.run(3)
    assert [bench.tokens(1, slot) for slot in range(3)] == [[1], [2, 6, 8], [3, 5]]
    assert bench.end(1, 0) == (Status.OK, b"stop")
