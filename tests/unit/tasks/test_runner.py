"""The runner of tasks: groups of one shape, ends, attempts, and what is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from batchpool.client.pool_facts import ModelFacts
from batchpool.control.task_messages import Letters, ListLetters
from batchpool.core.errors import InvalidRequest, ModelError, NotReady, WorkerLost
from batchpool.core.tensors.spec import Tensor
from batchpool.tasks.record import Want
from batchpool.tasks.store import StoreAway, StoreFull
from batchpool.wire.codec import Codec
from tests.unit.tasks.desk import MAX_BATCH, SETTINGS, SPEC, Desk, running


def test_tasks_of_one_shape_share_calls_and_each_gets_its_own_rows() -> None:
    """Complaint 13: no result under another's id."""

    async def scene() -> None:
        desk = Desk()
        ids = [await desk.submit([i, i + 100]) for i in range(6)]
        async with running(desk):
            for identifier in ids:
                await desk.until_state(identifier, "done")
        bodies = [desk.body(identifier) for identifier in ids]
        assert bodies == [b'{"predictions":[%d,%d]}' % (2 * i, 2 * i + 200) for i in range(6)]
        # The first task comes alone, by which the model's limits are learnt.
        assert sorted(map(len, desk.engine.calls)) == [2, 2, 4, 4], "two tasks of two rows a call"

    asyncio.run(scene())


def test_rows_of_different_sizes_keep_their_sizes() -> None:
    async def scene() -> None:
        desk = Desk()
        identifier = await desk.submit([[1, 2], [3]], model="ragged")  # type: ignore[list-item]
        async with running(desk):
            await desk.until_state(identifier, "done")
        assert desk.body(identifier) == b'{"predictions":[[2,3],[4]]}'

    asyncio.run(scene())


def test_a_row_that_fails_fails_its_task_alone() -> None:
    """Complaint 14: one failing inference fails one task, and is not tried for ever."""

    async def scene() -> None:
        desk = Desk()
        desk.engine.errors[7] = ModelError("seven")
        bad, good = await desk.submit([1, 7]), await desk.submit([2])
        async with running(desk):
            await desk.until_state(good, "done")
            await desk.until_state(bad, "queued")
            assert desk.shelf.tasks[bad].attempts == 1
            desk.now_ms += 1500
            desk.runner.submitted("twice")
            await desk.until_state(bad, "failed")
        (letter, _) = desk.shelf.letters[1]
        assert (letter.code, letter.attempts, letter.facts) == ("model_error", 2, {"row": 1})
        assert b'"row":1' in desk.body(bad)
        assert desk.metrics.letters == {"twice": {"model_error": 1}}

    asyncio.run(scene())


def test_a_dead_letter_has_the_models_traceback_which_a_list_leaves_out() -> None:
    async def scene() -> None:
        desk = Desk(settings=replace(SETTINGS, attempts=1))
        error = desk.engine.errors[7] = ModelError("seven")
        error.facts = {"batch": 5, "worker": 0, "worker_pid": 4711}
        desk.tracebacks[4711, 5, "seven"] = "Traceback"
        bad = await desk.submit([7])
        async with running(desk):
            await desk.until_state(bad, "failed")
            for whole in (True, False):
                told = await desk.answers.answer(ListLetters(most=1, whole=whole))
                assert isinstance(told, Letters)
                assert ("traceback" in told.letters[0].facts) == whole
        (letter, _) = desk.shelf.letters[1]
        assert letter.facts == {**error.facts, "traceback": "Traceback"}

    asyncio.run(scene())


@pytest.mark.parametrize("error", [InvalidRequest("odd"), RuntimeError("a fault of ours")])
def test_a_call_that_fails_as_a_whole_is_run_one_by_one_or_tried_again(error: Exception) -> None:
    """Complaint 3: every way out of a call ends its tasks or tries them again."""

    async def scene() -> None:
        desk = Desk()
        desk.engine.whole[7] = error
        bad, good = await desk.submit([7]), await desk.submit([2])
        async with running(desk):
            if isinstance(error, InvalidRequest):
                await desk.until_state(good, "done")
                await desk.until_state(bad, "failed")
            else:
                await desk.until(lambda: desk.shelf.tasks[good].attempts == 1)
                assert desk.shelf.tasks[bad].attempts == 1

    asyncio.run(scene())


def test_a_model_that_cannot_be_asked_now_is_left_alone_for_a_while() -> None:
    async def scene() -> None:
        desk = Desk()
        desk.engine.whole[1] = NotReady("loading", 2000)
        ids = [await desk.submit([1]) for _ in range(40)]
        async with running(desk):
            await desk.until(lambda: bool(desk.engine.calls) and not desk.runner.running)
            for _ in range(20):
                await asyncio.sleep(0.001)
            touched = sum(kept.claims for kept in desk.shelf.tasks.values())
            assert touched <= 16, "not every task is tried while the model is away"
            desk.engine.whole.clear()
            desk.now_ms += 20_000
            desk.runner.submitted("twice")
            for identifier in ids:
                await desk.until_state(identifier, "done")
        assert {kept.attempts for kept in desk.shelf.tasks.values()} == {1}

    asyncio.run(scene())


def test_no_more_rows_are_in_flight_than_keep_the_workers_busy() -> None:
    """Complaint 14: the rest waits in the store, not in memory."""

    async def scene() -> None:
        desk = Desk()
        desk.engine.gate.clear()
        ids = [await desk.submit([i]) for i in range(60)]
        async with running(desk):
            await desk.until(lambda: len(desk.runner.running) >= 4)
            for _ in range(20):
                await asyncio.sleep(0.001)
            states = [desk.state(identifier) for identifier in ids]
            assert states.count("running") <= 16
            desk.engine.gate.set()
            for identifier in ids:
                await desk.until_state(identifier, "done")

    asyncio.run(scene())


def test_a_model_that_is_gone_leaves_dead_letters() -> None:
    async def scene() -> None:
        desk = Desk()
        identifier = await desk.submit([1])
        desk.engine.unknown = True
        async with running(desk):
            await desk.until_state(identifier, "failed")
        assert desk.shelf.letters[1][0].code == "not_found"

    asyncio.run(scene())


def test_a_result_that_the_store_cannot_take_is_kept_until_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("batchpool.tasks.task_ends._STORE_RETRY_S", 0.005)

    async def scene() -> None:
        desk = Desk()
        desk.engine.gate.clear()
        identifier = await desk.submit([4])
        async with running(desk):
            await desk.until_state(identifier, "running")
            desk.store.is_full = True
            desk.engine.gate.set()
            await desk.until(lambda: bool(desk.engine.calls))
            await asyncio.sleep(0.02)
            assert desk.state(identifier) == "running"
            desk.store.is_full = False
            await desk.until_state(identifier, "done")
        assert len(desk.engine.calls) == 1, "it is not run again for that"

    asyncio.run(scene())


def test_what_a_process_that_died_had_claimed_is_run_by_the_next_one() -> None:
    """Complaints 6, 9 and 10: also where the process dies again and again."""

    async def scene() -> None:
        first = Desk()
        identifier = await first.submit([3])
        for _ in range(19):
            desk = Desk(first.shelf)
            await desk.runner.reclaim()
            await desk.committer.run(lambda store, now: store.claim([_want()], now))
            await desk.committer.close()
        last = Desk(first.shelf)
        async with running(last):
            await last.until_state(identifier, "done")
        doomed = await first.submit([5])
        first.shelf.tasks[doomed].losses = 19
        await first.committer.run(lambda store, now: store.claim([_want()], now))
        heir = Desk(first.shelf)
        async with running(heir):
            await heir.until_state(doomed, "failed")
        assert heir.metrics.counts["reclaimed"] == 1
        assert first.shelf.letters[1][0].code == "gave_up"

    asyncio.run(scene())


def _want() -> Want:
    return Want("twice", 1, 1)


def test_a_task_that_was_taken_back_while_it_ran_has_no_result() -> None:
    async def scene() -> None:
        desk = Desk()
        desk.engine.gate.clear()
        alone, first, second = [await desk.submit([i] * n) for i, n in ((1, 4), (2, 1), (3, 1))]
        async with running(desk):
            await desk.until_state(second, "running")
            for identifier in (alone, first):
                await desk.committer.ask("cancel", identifier)
                desk.runner.cancelled(identifier)
            desk.engine.gate.set()
            await desk.until_state(second, "done")
            await desk.until(lambda: not desk.runner.running)
        assert [desk.state(alone), desk.state(first)] == ["cancelled"] * 2
        assert [1] * 4 not in desk.engine.calls, "a call of that task alone has ended"
        assert desk.metrics.counts["duplicate"] == 1

    asyncio.run(scene())


def test_a_lost_worker_uses_up_attempts() -> None:
    async def scene() -> None:
        desk = Desk()
        desk.engine.errors[9] = WorkerLost("dead")
        identifier = await desk.submit([9])
        async with running(desk):
            await desk.until(lambda: desk.shelf.tasks[identifier].attempts == 1)
            desk.now_ms += 2000
            desk.runner.submitted("twice")
            await desk.until_state(identifier, "failed")

    asyncio.run(scene())


def test_a_task_whose_outputs_the_model_has_no_more_is_not_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        desk = Desk()
        identifier = await desk.submit([1])
        reloaded = replace(SPEC, outputs=(Tensor("w", "int64"),))

        async def facts(_: str) -> ModelFacts:
            return ModelFacts(0, reloaded, 0.9, 30.0, MAX_BATCH)

        monkeypatch.setattr(desk.engine, "facts", facts)
        async with running(desk):
            await desk.until_state(identifier, "failed")
        (letter, _) = desk.shelf.letters[1]
        assert letter.code == "not_found"
        assert "has no output 'y' any more" in letter.error
        assert not desk.engine.calls

    asyncio.run(scene())


def test_a_task_whose_answer_cannot_be_written_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the server's leaves no task that runs for ever."""

    def encode(*_: Any) -> Any:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Codec, "encode", encode)

    async def scene() -> None:
        desk = Desk()
        identifier = await desk.submit([1])
        async with running(desk):
            await desk.until(lambda: bool(desk.engine.calls) and not desk.runner.running)
            assert desk.state(identifier) == "queued"
            desk.now_ms += 2000
            desk.runner.submitted("twice")
            await desk.until_state(identifier, "failed")
        assert desk.shelf.letters[1][0].code == "internal"
        assert b"a fault of ours" not in desk.body(identifier)

    asyncio.run(scene())


@pytest.mark.parametrize("damage", [{"input": b""}, {"input": b"\xc1"}, {"answer": b"\x80"}])
def test_a_task_that_cannot_be_read_fails_alone(damage: dict[str, Any]) -> None:
    """Those that were claimed with it run."""

    async def scene() -> None:
        desk = Desk()
        bad, good = await desk.submit([1]), await desk.submit([2])
        task = desk.shelf.tasks[bad]
        task.task = msgspec.structs.replace(task.task, **damage)
        async with running(desk):
            await desk.until_state(bad, "failed")
            await desk.until_state(good, "done")
        (letter, _) = desk.shelf.letters[1]
        assert letter.code == "internal"
        assert "cannot be read" in letter.error

    asyncio.run(scene())


def failing_claims(
    monkeypatch: pytest.MonkeyPatch, desk: Desk, model: str, error: Exception
) -> None:
    """Let the first two claims of tasks of this model fail: a full group is tried twice."""
    real, failures = desk.store.claim, [error, error]

    def claim(wants: Sequence[Want], now_ms: int) -> Any:
        if failures and wants[0].model == model:
            raise failures.pop()
        return real(wants, now_ms)

    monkeypatch.setattr(desk.store, "claim", claim)
    monkeypatch.setattr("batchpool.tasks.runner._STORE_RETRY_S", 0.005)


@pytest.mark.parametrize("error", [StoreFull("no room"), StoreAway("away")])
def test_a_claim_that_fails_is_tried_again_by_itself(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def scene() -> None:
        desk = Desk()
        failing_claims(monkeypatch, desk, "twice", error)
        identifier = await desk.submit([1])
        async with running(desk):
            await desk.until_state(identifier, "done")

    asyncio.run(scene())


@pytest.mark.parametrize("failing", ["one", "two"])
def test_what_is_claimed_runs_where_the_claims_of_another_commit_fail(
    monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    monkeypatch.setattr("batchpool.tasks.committer.MOST_TASKS", 1)
    monkeypatch.setattr("batchpool.tasks.committer.LEAST_TASKS", 0)

    async def scene() -> None:
        desk = Desk()
        failing_claims(monkeypatch, desk, failing, StoreFull("no room"))
        ids = [await desk.submit([1], model=model) for model in ("one", "two")]
        async with running(desk):
            for identifier in ids:
                await desk.until_state(identifier, "done")
        assert [desk.shelf.tasks[identifier].claims for identifier in ids] == [1, 1]

    asyncio.run(scene())


def test_a_due_time_that_cannot_be_read_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        desk = Desk()
        real, failures = desk.store.next_due_ms, [StoreAway("away")]

        def next_due_ms(models: Sequence[str]) -> list[int | None]:
            if failures:
                raise failures.pop()
            return real(models)

        monkeypatch.setattr(desk.store, "next_due_ms", next_due_ms)
        monkeypatch.setattr("batchpool.tasks.runner._STORE_RETRY_S", 0.005)
        identifier = await desk.submit([1])
        desk.shelf.tasks[identifier].due_ms = desk.now_ms + 10
        async with running(desk):
            await desk.until(lambda: not failures)
            desk.now_ms += 10
            await desk.until_state(identifier, "done")

    asyncio.run(scene())
