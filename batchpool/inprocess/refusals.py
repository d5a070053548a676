"""Inputs that a model refuses: bp.InvalidInput in an output's place, or raised.

Raised for one input it refuses that one. Raised for several, nobody knows which is meant: the batch
runs again in parts until the refused input is alone, as in a pool. So every output is the model's
for that input or the InvalidInput that refuses it, whatever the inputs beside it are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from batchpool.core.errors import InvalidInput
from batchpool.core.scheduler.suspect_rows import PARTS


def outputs_of_each(run: Callable[[Any], list[Any]], inputs: Any) -> list[Any]:
    """One output or InvalidInput for each input. run: runs one batch, a part of the inputs."""
    try:
        return run(inputs[:])  # a list that the model changes must be whole for the parts
    except InvalidInput as error:
        if len(inputs) == 1:
            return [error]
    outputs: list[Any] = []
    for part in _parts(inputs):
        outputs += outputs_of_each(run, part)
    return outputs


async def await_outputs_of_each(
    run: Callable[[Any], Awaitable[list[Any]]], inputs: list[Any]
) -> list[Any]:
    """As `outputs_of_each`, for batches that are awaited."""
    try:
        return await run(inputs[:])
    except InvalidInput as error:
        if len(inputs) == 1:
            return [error]
    outputs: list[Any] = []
    for part in _parts(inputs):
        outputs += await await_outputs_of_each(run, part)
    return outputs


def _parts(inputs: Any) -> Iterator[Any]:
    """The inputs of a batch in at most PARTS parts: slices, so an array stays one."""
    each = -(-len(inputs) // PARTS)
    return (inputs[at : at + each] for at in range(0, len(inputs), each))
