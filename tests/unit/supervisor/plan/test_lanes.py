"""The lanes of a model: their slots, their arenas, and what the plan says of them."""

from __future__ import annotations

from typing import Any

import pytest

from batchpool.core.config.schema import ModelConfig
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.layout.arena import arena_for
from batchpool.core.layout.segments import lane_layout
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.supervisor.plan.lanes import ModelLanes, arena_lines, plan_lanes
from tests.unit.specs import AFFINE, model

MIB = 1 << 20
PICTURES = model(Tensor("picture", "bytes", max_bytes=8 * MIB))


def lanes(
    spec: ModelSpec = PICTURES, frontends: int = 1, client_slots: int = 1024, **keys: Any
) -> ModelLanes:
    config = ModelConfig(import_name="a:B", **keys)
    return plan_lanes(config, spec, ServerConfig(client_slots=client_slots), frontends)


def test_pictures_need_tens_of_mib_where_they_reserved_half_a_gib() -> None:
    found = lanes(slots=64)
    assert found.lane == lane_layout(PICTURES, 64)
    assert found.lane.total_bytes < 33 * MIB
    assert found.client_lane.slots == 1024
    assert found.client_lane.total_bytes < 130 * MIB


def test_slots_are_chosen_by_what_lanes_take_with_their_arenas() -> None:
    found = lanes()
    assert found.lane.slots == 4096
    assert found.lane.arena_bytes == 256 * MIB
    large = lanes(input_arena_mib=1200).lane
    assert (large.slots, large.arena_bytes) == (4096, 1200 * MIB), "as it was asked for"


def test_the_configured_arena_is_split_between_front_ends() -> None:
    found = lanes(slots=256, frontends=2, input_arena_mib=96)
    assert (found.lane.slots, found.lane.arena_bytes) == (128, 48 * MIB)
    assert found.notes == ()
    assert found.client_lane.arena_bytes == 48 * MIB, "no more than a front end has"
    assert lanes(slots=256, input_arena_mib=200).client_lane.arena_bytes == 128 * MIB


def test_an_arena_holds_at_least_two_of_the_largest_rows() -> None:
    found = lanes(slots=256, frontends=2, input_arena_mib=10)
    assert found.lane.arena_bytes == 16 * MIB
    assert found.notes == (
        "input_arena_mib = 10 was asked for, but the arena of each front end holds at least 2 of"
        " the largest rows: 16.0 MiB",
    )


def test_a_model_without_large_inputs_has_none_whatever_is_asked_for() -> None:
    found = lanes(AFFINE, input_arena_mib=64)
    assert found.lane == lane_layout(AFFINE, 4096)
    assert found.notes == (
        "input_arena_mib = 64 has no effect: no input of bytes, or with a dynamic dimension, has"
        " rows of up to 256.0 KiB or more",
    )
    assert lanes(AFFINE).notes == ()


def test_slots_of_their_own_where_the_arena_would_be_as_large() -> None:
    found = lanes(slots=64, input_arena_mib=512)
    assert found.lane.arena_bytes == 0
    assert found.lane.total_bytes > 512 * MIB
    assert found.notes[1:] == ()


@pytest.mark.parametrize(
    ("frontends", "line"),
    [
        (1, "  input arena    32.0 MiB of it for picture; a row takes up to 8.0 MiB"),
        (2, "  input arena    32.0 MiB of each lane for picture; a row takes up to 8.0 MiB"),
    ],
)
def test_the_plan_shows_it(frontends: int, line: str) -> None:
    assert arena_lines(PICTURES, lane_layout(PICTURES, 64), frontends) == [line]
    assert arena_lines(AFFINE, lane_layout(AFFINE, 64), frontends) == []


def test_a_client_lane_of_few_slots_has_no_arena() -> None:
    assert lanes(client_slots=3).client_lane == lane_layout(PICTURES, 3)
    assert arena_for(PICTURES, 3).nbytes == 0
