"""Tasks of a model that this pool has not, or has with other inputs: another pool may have it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from batchpool.client.pool_facts import ModelFacts
from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.rows import Rows
from batchpool.core.tensors.spec import Dim, Tensor
from batchpool.tasks.record import ClaimedTask
from batchpool.tasks.stacking import ReadTask, fits
from batchpool.wire.request import InferRequest
from tests.unit.tasks.desk import MAX_BATCH, SPEC, Desk, running

OTHER = replace(SPEC, inputs=(Tensor("x", "int64", (2,)),))


class OtherRelease(Desk):
    """A desk whose pool has the model with other inputs, until it is updated."""

    updated = False

    def __init__(self, *, is_shared: bool) -> None:
        super().__init__(is_shared=is_shared)
        real = self.engine.facts

        async def facts(model: str) -> ModelFacts:
            if self.updated:
                return await real(model)
            return ModelFacts(0, OTHER, 0.9, 30.0, MAX_BATCH)

        self.engine.facts = facts  # type: ignore[method-assign]
        self.engine.whole[7] = InvalidRequest("shape")


def task_of(name: str, array: Array) -> ReadTask:
    request = InferRequest(None, Rows(1, {name: array}, {}), (), None, 0, "json")
    return ReadTask(ClaimedTask("t", "m", 1, 0, 0, 1, b"", b"", 0, 0), 1, None, request)


def test_a_task_of_a_model_that_only_others_serve_waits_for_them() -> None:
    async def scene() -> None:
        desk = Desk(is_shared=True)
        desk.engine.unknown = True
        identifier = await desk.submit([7])
        async with running(desk):
            await desk.until(lambda: desk.shelf.tasks[identifier].due_ms > desk.now_ms)
            assert desk.state(identifier) == "queued"
            assert not desk.shelf.letters
            desk.engine.unknown = False
            desk.now_ms += 10_000
            desk.runner.submitted("twice")
            await desk.until_state(identifier, "done", "failed")
        assert desk.body(identifier) == b'{"predictions":[14]}'

    asyncio.run(scene())


def test_a_task_with_inputs_of_another_release_waits_for_a_pool_that_has_it() -> None:
    async def scene() -> None:
        desk = OtherRelease(is_shared=True)
        identifier = await desk.submit([7])
        async with running(desk):
            await desk.until(lambda: desk.shelf.tasks[identifier].due_ms > desk.now_ms)
            assert desk.state(identifier) == "queued"
            desk.updated = True
            desk.engine.whole.clear()
            desk.now_ms += 2000
            desk.runner.submitted("twice")
            await desk.until_state(identifier, "done", "failed")
        assert desk.body(identifier) == b'{"predictions":[14]}'

    asyncio.run(scene())


def test_where_there_are_no_others_it_fails_at_once() -> None:
    async def scene() -> None:
        desk = OtherRelease(is_shared=False)
        identifier = await desk.submit([7])
        async with running(desk):
            await desk.until_state(identifier, "failed")
        (letter,) = desk.shelf.letters.values()
        assert (letter[0].code, letter[0].error) == (
            "invalid_request", "model 'twice' has other inputs than this task: shape",
        )  # fmt: skip
        answer = desk.shelf.tasks[identifier].answer
        assert answer is not None
        assert answer.status == 400, "404 would say that there is no such task"

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("inputs", "is_fit"),
    [
        ([Tensor("x", "float32", (4,))], True),
        ([Tensor("x", "float32", (Dim(8),), pad=0)], True),
        ([Tensor("x", "float32", (4,)), Tensor("k", "int64", (), default=1)], True),
        ([Tensor("x", "float32", (5,))], False),
        ([Tensor("x", "float32", (2, 2))], False),
        ([Tensor("x", "float64", (4,))], False),
        ([Tensor("z", "float32", (4,))], False),
        ([Tensor("x", "float32", (4,)), Tensor("z", "float32", (4,))], False),
    ],
)
def test_a_task_fits_the_inputs_that_it_could_have_been_sent_for(
    inputs: list[Tensor], is_fit: bool
) -> None:
    assert fits(task_of("x", np.zeros((1, 4), np.float32)), inputs) is is_fit


def test_texts_fit_a_tensor_of_bytes() -> None:
    task = task_of("t", np.array([b"a"], dtype=object))
    assert fits(task, [Tensor("t", "bytes", max_bytes=8)])
    assert not fits(task, [Tensor("t", "int64")])
