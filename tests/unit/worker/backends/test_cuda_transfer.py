"""Direct copies between lanes and a device, with the CPU as the device and a noted CUDA runtime."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.shm.lane import Lane
from batchpool.worker.backends.backend import BatchPart
from batchpool.worker.backends.cuda_transfer import LaneTransfer, direct_pays, extents_of, is_large
from batchpool.worker.backends.driver_copy import Run
from batchpool.worker.gather import parts_of
from tests.lazy import library
from tests.unit.lanes import new_lane

torch = library("torch")

SLOTS = 12
ROW = 4096  # float32: 16 KiB
SPEC = ModelSpec(
    "large",
    "torch",
    (
        Tensor("x", "float32", (ROW,)),
        Tensor("half", "bfloat16", (4, 2 * ROW)),
        Tensor("small", "float32", (511,)),
        Tensor("ids", "int64", (Dim(10_000),)),
        Tensor("text", "bytes", (), max_bytes=1 << 15),
    ),
    (Tensor("y", "float32", (ROW,)), Tensor("few", "float32", (2,))),
    (),
)
X, HALF = SPEC.inputs[0], SPEC.inputs[1]
Y = SPEC.outputs[0]


class Runtime:
    """cudaHostRegister and its opposite: what is registered; `left`: how many calls succeed."""

    def __init__(self, left: int = 1000) -> None:
        self.registered: dict[int, int] = {}
        self.left = left

    def cudaHostRegister(self, at: int, nbytes: int, flags: int) -> int:
        self.left -= 1
        if self.left < 0:
            return 712
        assert at not in self.registered
        self.registered[at] = nbytes
        return 0

    def cudaHostUnregister(self, at: int) -> int:
        del self.registered[at]
        return 0


def copy_now(runs: Iterable[Run]) -> None:
    for target, source, nbytes in runs:
        ctypes.memmove(target, source, nbytes)


def transfer(monkeypatch: pytest.MonkeyPatch, left: int = 1000) -> tuple[LaneTransfer, Runtime]:
    runtime = Runtime(left)
    monkeypatch.setattr(LaneTransfer, "_cudart", lambda self: runtime)
    return LaneTransfer(torch, torch.device("cpu"), SPEC, copy_now), runtime


def lane(number: int = 1) -> Lane:
    found = new_lane(SPEC, SLOTS)
    values = np.arange(SLOTS, dtype=np.float32)[:, None] + 100 * number
    found.inputs["x"].values[...] = values
    found.inputs["half"].values[...] = (values.view(np.uint32) >> 16).astype(np.uint16)[:, :, None]
    return found


def parts(lanes: dict[int, Lane], *rows: tuple[int, int]) -> list[BatchPart]:
    numbers, slots = np.array(rows).T
    return parts_of(lanes, numbers, slots)


def test_only_large_fixed_rows_are_worth_it() -> None:
    assert [t.name for t in (*SPEC.inputs, *SPEC.outputs) if is_large(t)] == ["x", "half", "y"]


def test_columns_are_registered_and_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    direct, runtime = transfer(monkeypatch)
    mine = lane()
    direct.pin(mine)
    columns = [mine.inputs["x"], mine.inputs["half"], mine.outputs["y"]]
    want = {column.values.ctypes.data: column.values.nbytes for column in columns}
    assert runtime.registered == want
    direct.unpin(mine)
    direct.unpin(mine)
    assert runtime.registered == {}
    assert direct.fetch(X, parts({1: mine}, (1, 0)), 1, None) is None


def test_a_column_that_cannot_be_registered_means_the_common_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    direct, runtime = transfer(monkeypatch, left=2)
    mine = lane()
    direct.pin(mine)
    assert runtime.registered == {}, "those before it are let go"
    assert "could not be registered" in caplog.text
    assert direct.fetch(X, parts({1: mine}, (1, 0)), 1, None) is None
    assert not direct.deliver(Y, parts({1: mine}, (1, 0)), torch.ones(1, ROW), 1)


def test_one_lane_that_is_not_registered_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    direct, _ = transfer(monkeypatch)
    mine, other = lane(1), lane(2)
    direct.pin(mine)
    both = parts({1: mine, 2: other}, (1, 0), (2, 0))
    assert direct.fetch(X, both, 2, None) is None
    assert not direct.deliver(Y, both, torch.ones(2, ROW), 2)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.sets(st.tuples(st.integers(1, 2), st.integers(0, SLOTS - 1)), min_size=1),
    padding=st.integers(0, 3),
)
def test_rows_arrive_in_order_whatever_their_slots(rows: set[Any], padding: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        direct, _ = transfer(patch)
        patch.setattr(
            "batchpool.worker.backends.cuda_transfer.COPY_NS", 0
        )  # any number of extents direct_pays
        lanes = {1: lane(1), 2: lane(2)}
        for each in lanes.values():
            direct.pin(each)
        where = sorted(rows)
        found = parts(lanes, *where)
        n = len(where) + padding
        row = np.full((1, ROW), -7, np.float32)
        there = direct.fetch(X, found, n, row)
        assert there.shape == (n, ROW)
        want = [100 * number + slot for number, slot in where] + [-7] * padding
        assert there[:, 0].tolist() == there[:, -1].tolist() == want
        extents = [extent for part in found for extent in extents_of(part)]
        assert direct.copies == {"in, direct": len(extents)}
        assert sum(count for _, count, _ in extents) == len(where)
        assert direct.deliver(Y, found, there * 2, n)
        for i, (number, slot) in enumerate(where):
            assert lanes[number].outputs["y"].values[slot, 5] == 2 * want[i]
        written = {(k, s) for k, each in lanes.items() for s in range(SLOTS)
                   if each.outputs["y"].values[s, 0]}  # fmt: skip
        assert written == rows, "no other slot is touched"


def test_half_precision_is_the_real_thing_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    direct, _ = transfer(monkeypatch)
    mine = lane()
    direct.pin(mine)
    row = np.zeros((1, 4, 2 * ROW), np.uint16)
    there = direct.fetch(HALF, parts({1: mine}, (1, 4), (1, 5)), 3, row)
    assert there.dtype == torch.bfloat16
    assert there[:, 3, -1].tolist() == [104.0, 105.0, 0.0]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((3, ROW), "float32"),
        ((2, ROW + 1), "float32"),
        ((2, ROW, 1), "float32"),
        ((2, ROW), "float64"),
    ],
    ids=str,
)
def test_what_was_not_declared_goes_the_common_way(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], dtype: str
) -> None:
    """There it is refused with an error that names the output."""
    direct, _ = transfer(monkeypatch)
    mine = lane()
    direct.pin(mine)
    value = torch.ones(shape, dtype=getattr(torch, dtype))
    assert not direct.deliver(Y, parts({1: mine}, (1, 0), (1, 1)), value, 2)
    assert not mine.outputs["y"].values.any()
    assert direct.deliver(Y, parts({1: mine}, (1, 0), (1, 1)), torch.ones(ROW, 2).T, 2)
    assert mine.outputs["y"].values[:2].all()


def test_many_small_extents_are_gathered() -> None:
    assert direct_pays(1, 1)
    assert direct_pays(64, 64 * 147 * 1024)
    assert not direct_pays(64, 64 * 32 * 1024)
    assert not direct_pays(2, 64 * 1024)
    assert direct_pays(2, 2 * 64 * 1024)
