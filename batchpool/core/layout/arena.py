"""The arena of a lane: one region for the inputs whose rows may be large and mostly are not.

A slot has space for the largest row of a tensor. Where that is far more than a usual row takes, as
of pictures, the rows stand in the arena of their lane instead, each in a run of the bytes that it
needs, and their slots hold where:

    in the arena   inputs of bytes or with dynamic dimensions, whose largest row takes LARGE_BYTES
    size           USUAL_BYTES for each slot and such input, together at most DEFAULT_MOST_BYTES,
                   but the LARGEST_ROWS largest rows at least; or as configured
    none           of a lane whose slots take no more than that

A run holds all such inputs of one row, each at the next multiple of ALIGN, so that a row is
contiguous and numbers are aligned.
"""

from __future__ import annotations

from dataclasses import dataclass

from batchpool.core.tensors.spec import ModelSpec

ALIGN = 128
LARGE_BYTES = 256 << 10
USUAL_BYTES = 128 << 10
LARGEST_ROWS = 4
LEAST_ROWS = 2  # so that room can be kept for a large row while others use the rest
DEFAULT_MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class Arena:
    """The inputs of a lane whose rows stand in its arena, and its size; nothing for no arena."""

    inputs: tuple[str, ...] = ()
    nbytes: int = 0


def aligned(nbytes: int) -> int:
    """The bytes that so many take in a run."""
    return -(-nbytes // ALIGN) * ALIGN


def large_inputs(spec: ModelSpec) -> tuple[str, ...]:
    """The names of the inputs whose rows may be large and need not be."""
    return tuple(
        tensor.name
        for tensor in spec.inputs
        if (tensor.is_bytes or tensor.dynamic) and tensor.row_bytes >= LARGE_BYTES
    )


def largest_run(spec: ModelSpec, inputs: tuple[str, ...]) -> int:
    """The most bytes that these inputs of one row take in the arena."""
    return sum(aligned(tensor.row_bytes) for tensor in spec.inputs if tensor.name in inputs)


def arena_for(spec: ModelSpec, slots: int, wanted_bytes: int = 0) -> Arena:
    """The arena of a lane of `slots` slots. wanted_bytes: as configured; 0 for the default."""
    inputs = large_inputs(spec)
    if not inputs:
        return Arena()
    row = largest_run(spec, inputs)
    usual = min(slots * len(inputs) * USUAL_BYTES, DEFAULT_MOST_BYTES)
    nbytes = max(wanted_bytes, LEAST_ROWS * row) if wanted_bytes else max(usual, LARGEST_ROWS * row)
    return Arena(inputs, aligned(nbytes)) if nbytes < slots * row else Arena()


def arena_of(spec: ModelSpec, nbytes: int) -> Arena:
    """The arena of which a control message tells the size."""
    return Arena(large_inputs(spec), nbytes) if nbytes else Arena()
