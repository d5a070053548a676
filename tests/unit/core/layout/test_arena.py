"""Which inputs stand in an arena, and how large it is."""

from __future__ import annotations

import pytest

from batchpool.core.layout.arena import (
    ALIGN,
    DEFAULT_MOST_BYTES,
    LARGE_BYTES,
    USUAL_BYTES,
    Arena,
    arena_for,
    arena_of,
    large_inputs,
    largest_run,
)
from batchpool.core.layout.segments import lane_layout
from batchpool.core.tensors.spec import Dim, Tensor
from tests.unit.specs import AFFINE, MIXED, X, model

MIB = 1 << 20
PICTURES = model(Tensor("picture", "bytes", max_bytes=8 * MIB))


def test_inputs_of_bytes_or_dynamic_ones_with_large_rows() -> None:
    spec = model(
        Tensor("fixed", "uint8", (LARGE_BYTES,)),
        Tensor("sound", "float32", (Dim(LARGE_BYTES // 4),)),
        Tensor("shorter", "float32", (Dim(LARGE_BYTES // 4 - 1),)),
        Tensor("pages", "bytes", (4,), max_bytes=LARGE_BYTES // 4),
        Tensor("text", "bytes", max_bytes=LARGE_BYTES - 1),
        parameters=(Tensor("key", "bytes", max_bytes=LARGE_BYTES),),
    )
    assert large_inputs(spec) == ("sound", "pages")
    assert largest_run(spec, large_inputs(spec)) == 2 * LARGE_BYTES
    assert largest_run(model(Tensor("b", "bytes", max_bytes=LARGE_BYTES + 1)), ("b",)) == (
        LARGE_BYTES + ALIGN
    )


@pytest.mark.parametrize("spec", [AFFINE, MIXED])
def test_other_models_have_none(spec: object) -> None:
    assert arena_for(spec, 4096) == Arena()  # type: ignore[arg-type]
    assert lane_layout(spec, 64).arena_bytes == 0  # type: ignore[arg-type]


def test_sixty_four_slots_of_pictures_take_tens_of_mib() -> None:
    layout = lane_layout(PICTURES, 64)
    assert layout.arena_bytes == 32 * MIB
    assert layout.total_bytes < 33 * MIB
    assert "in.picture" not in layout.columns
    assert layout.columns["at.in.picture"].shape == (64,)


def test_the_default_grows_with_the_slots_up_to_a_most() -> None:
    assert arena_for(PICTURES, 4) == Arena(), "as much as all the largest rows"
    assert arena_for(PICTURES, 5).nbytes == 32 * MIB
    assert arena_for(PICTURES, 1024).nbytes == 1024 * USUAL_BYTES
    assert arena_for(PICTURES, 4096).nbytes == DEFAULT_MOST_BYTES
    huge = model(Tensor("film", "bytes", max_bytes=100 * MIB))
    assert arena_for(huge, 64).nbytes == 400 * MIB


def test_a_configured_size_holds_two_of_the_largest_rows() -> None:
    assert arena_for(PICTURES, 64, 20 * MIB).nbytes == 20 * MIB
    assert arena_for(PICTURES, 64, MIB).nbytes == 16 * MIB
    assert arena_for(PICTURES, 64, 512 * MIB) == Arena(), "then each slot has its own"


def test_a_message_tells_the_size_alone() -> None:
    arena = arena_for(PICTURES, 64)
    assert arena_of(PICTURES, arena.nbytes) == arena
    assert arena_of(PICTURES, 0) == Arena()
    assert lane_layout(PICTURES, 64, arena) == lane_layout(PICTURES, 64)
    assert lane_layout(PICTURES, 64, Arena()).digest != lane_layout(PICTURES, 64).digest


def test_an_arena_that_no_row_fits_is_no_layout() -> None:
    with pytest.raises(AssertionError, match="no room in the arena"):
        lane_layout(PICTURES, 64, Arena(("picture",), 8 * MIB - ALIGN))


def test_it_stands_behind_all_columns_at_a_page() -> None:
    layout = lane_layout(model(X, Tensor("b", "bytes", (Dim(2),), max_bytes=MIB)), 64)
    assert list(layout.columns)[-1] == "arena"
    assert layout.columns["arena"].offset % 4096 == 0
    assert "arena" in layout.drawing()
    assert layout.columns["len.in.b"].shape == (64, 2)
