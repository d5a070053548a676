"""A row of a lane as a sequence that joins: its prompt, the tokens that it has, its parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchpool.core.errors import InvalidInput
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec
from batchpool.generator import MAX_TOKENS, JoiningSequence
from batchpool.worker.backends.backend import BatchPart
from batchpool.worker.gather import load_input
from batchpool.worker.sequence_lane import SequenceLane


def joining_sequence(
    spec: ModelSpec, own: SequenceLane, slot: int, number: int, reserved: int
) -> tuple[JoiningSequence, bool]:
    """A row as the generator gets it, and whether it has stopped by itself already.

    reserved: the tokens that the batcher set aside for the row, its prompt among them. Everything
    is read once, and the prompt and the most tokens are cut to that: a local client may have
    written more since.
    """
    lane = own.lane
    slots = np.array([slot], dtype=np.int64)
    part = BatchPart(lane, slots, slice(slot, slot + 1), 0, 1)
    prompt = _prompt(spec, part, max(0, reserved - 1))
    parameters = {t.name: _parameter(part, t.name) for t in spec.parameters}
    declared = spec.outputs[0].max_shape[0]
    wanted = max(1, int(parameters[MAX_TOKENS]))
    most = max(1, min(wanted, declared, reserved - len(prompt)))
    parameters[MAX_TOKENS] = most
    tokens, stopped = own.tokens_of(slot, most)
    sequence = JoiningSequence(number, prompt, tokens, most, parameters)
    return sequence, stopped


def too_short(spec: ModelSpec, sequence: JoiningSequence) -> InvalidInput:
    """The refusal of a sequence whose prompt is shorter than its declaration allows."""
    prompt = spec.inputs[0]
    return InvalidInput(
        f"input {prompt.name!r} has size {len(sequence.prompt)}; at least {prompt.min_shape[0]} was"
        " expected"
    )


def _prompt(spec: ModelSpec, part: BatchPart, most: int) -> Array:
    """A copy of the prompt, [n, ...], of at most so many elements."""
    array, sizes = load_input([part], spec.inputs[0].name)
    assert sizes is not None
    return np.array(array[0, : min(int(sizes[0, 0]), most)])


def _parameter(part: BatchPart, name: str) -> Any:
    array, _ = load_input([part], name, parameter=True)
    value = array[0]
    return value.item() if isinstance(value, np.generic) else value
