"""A local client that writes nonsense into its own lane harms nobody but itself."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from batchpool.client.lane_client import LaneClient
from batchpool.core.layout.segments import HEAD_FIELDS
from batchpool.core.layout.states import LaneGate, SlotState
from batchpool.shm.segment import word
from tests.process.load import Load
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until

ONES = np.ones((1, 4), np.float32)
HEAD_BYTES = 8 * len(HEAD_FIELDS)


@pytest.fixture(scope="module")
def pool() -> Any:
    with serving("Affine", "Echo", "Ragged") as pool:
        yield pool


def lane_client_of(client: bp.Client, model: str) -> LaneClient:
    session = client._driver.reaper.session
    assert session is not None
    return session.lane_set[model]


def ring(client: bp.Client) -> None:
    session = client._driver.reaper.session
    assert session is not None
    session.ring()


def raw_bytes(lane_client: LaneClient) -> memoryview:
    """Every byte of the lane."""
    memory: Any = lane_client.lane.memory
    return memoryview(memory.map)


def assert_unharmed(pool: Pool) -> None:
    with pool.client() as good:
        for i in range(20):
            assert good.infer("affine", x=ONES * i)["y"].tolist() == [[2 * i + 1] * 4]
        assert good.infer("echo", text=[b"abc"])["text"].tolist() == [b"abc"]
    assert "Traceback" not in pool.log


def no_lanes(pool: Pool) -> None:
    until(lambda: not pool.lanes(), "the return of every lane")


def too_high_a_slot(lane_client: LaneClient) -> None:
    lane_client.lane.sq_producer().push_few([lane_client.lane.slots + 5])


def a_ring_too_full(lane_client: LaneClient) -> None:
    cells = lane_client.lane.memory.cells()
    cells[word(lane_client.lane.layout, "sq_tail")] += 2**40


@pytest.mark.parametrize("spoil", [too_high_a_slot, a_ring_too_full])
@pytest.mark.long
def test_a_lane_with_an_impossible_entry_is_closed(pool: Pool, spoil: Any) -> None:
    """C50: what no right client can write is not followed, and costs its writer the lane."""
    with pool.client() as client:
        assert client.infer("affine", x=ONES)["y"].tolist() == [[3] * 4]
        lane_client = lane_client_of(client, "affine")
        spoil(lane_client)
        ring(client)
        until(lambda: lane_client.lane.gate.get() == LaneGate.BROKEN, "the end of the lane")
        with pytest.raises(bp.InternalError, match=r"'affine' was closed as broken"):
            client.infer("affine", x=ONES)
        assert client.infer("echo", text=[b"still"])["text"].tolist() == [b"still"]
        assert_unharmed(pool)
    no_lanes(pool)


@pytest.mark.interpreted
def test_a_length_beyond_the_slot_leads_nobody_out_of_it(pool: Pool) -> None:
    """C50: of a text that claims to be longer than its cell, its own cell is what comes back."""
    with pool.client() as client, pool.client() as neighbour:
        neighbour.submit("echo", text=[b"secret" * 600]).result(PATIENCE_S)
        client.infer("echo", text=[b"x" * 4096])
        lane_client = lane_client_of(client, "echo")
        column = lane_client.lane.inputs["text"]
        assert column.lengths is not None
        for claimed in (4097, 2**31 - 1, 2**32 - 1):

            def lie(claimed: int = claimed) -> int:
                column.lengths[:] = claimed  # of every slot, just before the rows are published
                return LaneClient.flush(lane_client)

            lane_client.flush = lie  # type: ignore[method-assign]
            found = client.infer("echo", text=[b"y" * 100])
            (text,) = found["text"].tolist()
            assert len(text) == found["length"][0] == 4096
            assert text == b"y" * 100 + text[100:]
            assert text[100:].strip(b"x\0") == b""
    assert_unharmed(pool)
    no_lanes(pool)


@pytest.mark.interpreted
def test_sizes_beyond_the_maximum_are_cut_to_it(pool: Pool) -> None:
    with pool.client() as client:
        client.infer("ragged", ids=np.zeros((1, 64), np.int64))
        lane_client = lane_client_of(client, "ragged")
        column = lane_client.lane.inputs["ids"]
        for claimed in (65, 2**31 - 1, 2**32 - 1):

            def lie(claimed: int = claimed) -> int:
                column.sizes[:] = claimed
                return LaneClient.flush(lane_client)

            lane_client.flush = lie  # type: ignore[method-assign]
            found = client.infer("ragged", ids=np.full((1, 64), 7))
            assert found["sum"].tolist() == [7 * 64]
    assert_unharmed(pool)
    no_lanes(pool)


@pytest.mark.parametrize(("seed", "dies"), [(0, ""), (1, ""), (2, "worker"), (3, "batcher")])
def test_a_client_that_scribbles_over_its_lane_harms_nobody_else(
    pool: Pool, seed: int, dies: str
) -> None:
    """C50: any bytes anywhere behind the head, published and not; neighbours get right answers,
    also when the lane is mapped anew by the successor of a process that dies meanwhile."""
    dice = random.Random(seed)
    with Load(pool, threads=2) as load:
        for round_ in range(12):
            with pool.client() as client:
                scribble(client, ("affine", "echo", "ragged")[round_ % 3], dice)
                ring(client)
                if dies and round_ < 3:
                    kill(pool, dies, round_)
            answered = load.answered
            until(lambda: load.answered > answered + 20, "more answers")  # noqa: B023
    assert (load.faults, load.lost, load.absent) == ([], 0, 0)
    assert_unharmed(pool)
    no_lanes(pool)


def scribble(client: bp.Client, model: str, dice: random.Random) -> None:
    row: dict[str, Any] = {
        "affine": {"x": ONES},
        "echo": {"text": [b"abc"]},
        "ragged": {"ids": np.ones((1, 3), np.int64)},
    }[model]
    for _ in range(50):
        client.submit(model, row)
    lane_client = lane_client_of(client, model)
    room = raw_bytes(lane_client)
    size = min(len(room), 1 << dice.choice([9, 12, 16]))
    for _ in range(dice.randrange(200)):
        at = dice.randrange(HEAD_BYTES, size - 8) & ~7
        room[at : at + 8] = dice.choice(NONSENSE)(dice)
    for slot in range(0, 50, 3):
        lane_client.lane.state[slot] = dice.choice(list(SlotState))


def kill(pool: Pool, role: str, number: int = 0) -> None:
    """One of that role; done when there is another one."""
    before = pool.pids(role)
    os.kill(before[number % len(before)], signal.SIGKILL)
    until(lambda: len({*pool.pids(role)} - {*before}) == 1, f"another {role}")
    until(lambda: all(m["workers"] == "1/1" for m in pool.status()["models"].values()), "warmth")


NONSENSE = [
    lambda dice: dice.randbytes(8),
    lambda dice: bytes([255]) * 8,
    lambda dice: bytes(8),
    lambda dice: dice.randrange(2000).to_bytes(8, "little"),
    lambda dice: (2**63).to_bytes(8, "little"),
]


@pytest.mark.parametrize("role", ["worker", "batcher"])
def test_a_client_that_destroys_its_lanes_head_takes_nobody_along(pool: Pool, role: str) -> None:
    """C50: whoever maps the lane later must not die of it."""
    with pool.client() as client, pool.client() as good:
        for each in (client, good):
            assert each.infer("affine", x=ONES)["y"].tolist() == [[3] * 4]
        raw_bytes(lane_client_of(client, "affine"))[:HEAD_BYTES] = bytes(HEAD_BYTES)
        kill(pool, role)
        assert good.infer("affine", x=ONES, timeout_s=PATIENCE_S)["y"].tolist() == [[3] * 4]
    assert_unharmed(pool)
    no_lanes(pool)
