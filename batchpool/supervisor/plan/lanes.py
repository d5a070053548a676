"""The lanes of a model: how many slots each has, and how large its arena is."""

from __future__ import annotations

from typing import NamedTuple

from batchpool.core.config.schema import ModelConfig
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.layout.admission import bound_of
from batchpool.core.layout.arena import (
    LARGE_BYTES,
    LEAST_ROWS,
    arena_for,
    large_inputs,
    largest_run,
)
from batchpool.core.layout.segments import Layout, lane_layout
from batchpool.core.tensors.spec import ModelSpec
from batchpool.shm.memory_limits import size_text
from batchpool.supervisor.plan.slots import auto_slots, client_lane


class ModelLanes(NamedTuple):
    """lane: of each front end. client_lane: of each local client."""

    lane: Layout
    client_lane: Layout
    notes: tuple[str, ...]


def plan_lanes(
    model: ModelConfig, spec: ModelSpec, server: ServerConfig, frontends: int
) -> ModelLanes:
    """The lanes of a model as configured, else as chosen; StartError for rows that do not fit."""
    arena_bytes = model.input_arena_mib << 20
    wanted = model.slots or auto_slots(spec, model.max_batch, arena_bytes)
    slots = max(wanted // frontends, model.max_batch)
    of_each = arena_bytes // frontends
    lane = lane_layout(spec, slots, arena_for(spec, slots, of_each))
    notes = []
    if slots * frontends > wanted:
        notes.append(
            f"{wanted} slots were {'asked for' if model.slots else 'chosen'}, but each front end"
            f" needs at least max_batch = {model.max_batch}"
        )
    bound = bound_of(slots, model.watermark)
    if bound < model.max_batch:
        notes.append(
            f"a front end can have {bound} rows in flight, which does not fill a batch of"
            f" {model.max_batch}; raise slots"
        )
    if arena_bytes and not large_inputs(spec):
        notes.append(
            f"input_arena_mib = {model.input_arena_mib} has no effect: no input of bytes, or with a"
            f" dynamic dimension, has rows of up to {size_text(LARGE_BYTES)} or more"
        )
    elif of_each < lane.arena_bytes and arena_bytes:
        notes.append(
            f"input_arena_mib = {model.input_arena_mib} was asked for, but the arena of each front"
            f" end holds at least {LEAST_ROWS} of the largest rows: {size_text(lane.arena_bytes)}"
        )
    return ModelLanes(lane, client_lane(spec, server.client_slots, of_each), tuple(notes))


def arena_lines(spec: ModelSpec, lane: Layout, frontends: int) -> list[str]:
    """The arena in the text of a plan; nothing where there is none."""
    if not lane.arena_bytes:
        return []
    inputs = large_inputs(spec)
    row, size = largest_run(spec, inputs), size_text(lane.arena_bytes)
    of = " of each lane" if frontends > 1 else " of it"
    return [
        f"  input arena    {size}{of} for {', '.join(inputs)}; a row takes up to {size_text(row)}"
    ]
