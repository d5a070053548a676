"""Large inputs in the arenas of lanes: what they take, and rows of every size through them."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import signal
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from batchpool.client.arena_lane_client import ArenaLaneClient
from batchpool.client.lane_client import LaneClient
from batchpool.core.layout.states import LaneGate
from batchpool.shm.segment import word
from tests.process.arena_models import MOST
from tests.process.gates import open_gate, opened_at_last
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until
from tests.process.test_hostile_client import (
    NONSENSE,
    lane_client_of,
    raw_bytes,
    ring,
)
from tests.process.web import Answer, ask

MIB = 1 << 20
SLOTS = 64
MODELS = [
    {"import": f"tests.process.arena_models:{name}", "slots": SLOTS, "max_batch": 8, **more}
    for name, more in (("Pictures", {}), ("Sounds", {}), ("Staged", {"preprocess_workers": 1}))
]
RAW = {"Content-Type": "image/jpeg"}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with serving(*MODELS, server={"client_slots": SLOTS}) as pool:
        yield pool


def picture(number: int, nbytes: int, begins: bytes = b"") -> bytes:
    """Bytes that differ from those of every other number."""
    pattern = b"%d," % number
    return (begins + pattern * (nbytes // len(pattern) + 1))[:nbytes]


def jpeg(number: int) -> bytes:
    """A picture of 50 to 300 KB."""
    return picture(number, 50_000 + 5_000 * (number * 7 % 50))


def sent(pool: Pool, body: bytes) -> Answer:
    return ask(pool, "/v2/models/pictures/infer", body, RAW)


def answered(pool: Pool, body: bytes) -> None:
    """Sent until there is room, and answered right."""

    def accepted() -> Answer | None:
        answer = sent(pool, body)
        return None if answer.status == 503 else answer

    check_answer(until(accepted, "the room for a picture"), body)


def check_answer(answer: Answer, body: bytes) -> None:
    assert answer.status == 200, answer.body
    assert answer.object == {"length": len(body), "crc": zlib.crc32(body)}


def in_slots(pool: Pool) -> int:
    """Rows that some lane has claimed."""
    return sum(lane["claimed"] for lane in pool.status()["lanes"])


def reserved(pid: int) -> list[int]:
    """The bytes of each lane that a process has mapped."""
    lanes = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "batchpool" in line and (line.endswith("(deleted)")):
            start, end = (int(at, 16) for at in line.split()[0].split("-"))
            lanes.append(end - start)
    return lanes


def test_a_lane_of_64_slots_takes_tens_of_mib(pool: Pool) -> None:
    (worker, *_) = pool.pids("worker")
    lanes = [size for size in reserved(worker) if size > MIB]
    assert lanes, "the front end's lane is mapped"
    assert sum(lanes) < 40 * MIB < SLOTS * MOST
    with pool.client() as client:
        client.infer("pictures", picture=[b"p"])
        layout = lane_client_of(client, "pictures").lane.layout
        assert layout.slots == SLOTS
        assert layout.total_bytes < 40 * MIB


def test_jpegs_with_some_of_the_largest_among_them(pool: Pool) -> None:
    bodies = [jpeg(i) for i in range(120)]
    for at in (7, 40, 41, 90):
        bodies[at] = picture(at, MOST)
    with ThreadPoolExecutor(SLOTS) as threads:
        list(threads.map(lambda body: answered(pool, body), bodies))


def test_local_rows_of_every_size_in_one_call(pool: Pool) -> None:
    sizes = [0, 1, 127, 128, 129, MOST, 300_000, MOST - 1, *range(1, 400_000, 5_001)]
    pictures = [picture(i, size) for i, size in enumerate(sizes)]
    with pool.client() as client:
        found = client.infer("pictures", picture=pictures)
        assert found["length"].tolist() == sizes
        assert found["crc"].tolist() == [zlib.crc32(each) for each in pictures]
        staged = client.infer("staged", picture=pictures)
        assert staged["before"].tolist() == staged["crc"].tolist() == found["crc"].tolist()
        views = client.infer("pictures", picture=pictures[:4], copy=False)
        assert views["length"].tolist() == sizes[:4]
        sounds = [np.arange(n, dtype=np.int32) for n in (0, 1, 1 << 18, 77_777, 5)]
        heard = client.infer("sounds", sound=sounds)
        assert heard["size"].tolist() == [len(sound) for sound in sounds]
        assert heard["sum"].tolist() == [int(sound.sum(dtype=np.int64)) for sound in sounds]
        (once,) = client.infer("sounds", sound=sounds[2][np.newaxis])["sum"].tolist()
        assert once == heard["sum"][2]


def test_a_full_arena_is_503_and_has_room_again(pool: Pool) -> None:
    """Its slots are free all the time; small pictures come in beside the large ones."""
    held = [picture(i, MOST, b"gate-1|") for i in range(3)]
    with ThreadPoolExecutor(4) as threads:
        under_way = [threads.submit(sent, pool, body) for body in held]
        with opened_at_last(pool, 1):
            # A body that came before all of them would take the place of the last one.
            until(lambda: in_slots(pool) == len(held), "the pictures that are held")

            def is_full() -> Answer | None:
                answer = sent(pool, picture(9, MOST))
                return answer if answer.status == 503 else None

            with ThreadPoolExecutor(1) as asking:
                refused = until(lambda: asking.submit(is_full).result(), "a full arena")
        for body, answer in zip(held, under_way, strict=True):
            check_answer(answer.result(), body)
    assert refused.object["code"] == "overloaded"
    assert re.search(r"24.0 MiB of the 32.0 MiB for its large inputs", refused.object["error"])
    assert int(refused.headers["retry-after"]) >= 1
    answered(pool, picture(9, MOST))
    counted = re.compile(
        r'claims_refused_total\{client="http",model="pictures",reason="full"\} [1-9]'
    )
    until(lambda: counted.search(ask(pool, "/metrics").body.decode()), "the count of refusals")


def test_a_local_call_waits_for_room_in_the_arena(pool: Pool) -> None:
    held = [picture(i, MOST, b"gate-2|") for i in range(3)]
    last = picture(9, MOST)
    with pool.client() as client, ThreadPoolExecutor(1) as threads:
        futures = [client.submit("pictures", picture=[body]) for body in held]
        with pytest.raises(bp.Overloaded, match="for its large inputs"):
            client.submit("pictures", picture=[last])
        with opened_at_last(pool, 2):
            waiting = threads.submit(client.infer, "pictures", picture=[last])
            with pytest.raises(bp.DeadlineExceeded, match="no room for 1 rows"):
                client.infer("pictures", picture=[last], timeout_s=0.3)
            assert client.submit("pictures", picture=[b"small"]).cancel() is not None
            assert not waiting.done()
        assert waiting.result()["crc"].tolist() == [zlib.crc32(last)]
        assert [f.result()["crc"].tolist() for f in futures] == [[zlib.crc32(b)] for b in held]


def die_with_rows(socket: str, ready: Any) -> None:
    client = bp.Client(socket)
    for i in range(3):
        client.submit("pictures", picture=[picture(i, MOST // 2, b"gate-3|")])
    ready.set()
    signal.pause()


def test_deaths_in_the_middle_leave_right_counts(pool: Pool) -> None:
    """kill -9 of a client, the batcher and the worker with rows in the arena."""
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    victim = spawn.Process(target=die_with_rows, args=(pool.socket, ready))
    pictures = [jpeg(i) for i in range(60)]
    pictures[30] = picture(30, MOST, b"once-1|")
    with ThreadPoolExecutor(1) as threads, pool.client() as client, opened_at_last(pool, 3):
        victim.start()
        assert ready.wait(PATIENCE_S)
        future = threads.submit(client.infer, "pictures", picture=pictures)
        until(lambda: pool.claimed() > 3, "rows of both are under way")
        os.kill(pool.pids("batcher")[0], signal.SIGKILL)
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        open_gate(pool, 3)
        found = future.result()
        assert found["crc"].tolist() == [zlib.crc32(each) for each in pictures]
        lane_client = lane_client_of(client, "pictures")
        assert isinstance(lane_client, ArenaLaneClient)
        assert (lane_client.arena.allocator.used, lane_client.allocator.claimed) == (0, 0)
        again = client.infer("pictures", picture=pictures[:9])
        assert again["crc"].tolist() == found["crc"].tolist()[:9]
    until(lambda: not pool.lanes(), "the end of both lanes")
    answered(pool, picture(1, MOST))


@pytest.mark.interpreted
@pytest.mark.parametrize("offset", [2**64 - 1, 32 * MIB, 1])
def test_a_row_outside_the_arena_costs_its_author_the_lane(pool: Pool, offset: int) -> None:
    with pool.client() as client, pool.client() as neighbour:
        client.infer("pictures", picture=[b"p"])
        lane_client = lane_client_of(client, "pictures")
        (column,) = lane_client.lane.arena_inputs

        def lie() -> int:
            column.offsets[:] = np.uint64(offset)
            return LaneClient.flush(lane_client)

        lane_client.flush = lie  # type: ignore[method-assign]
        future = client.submit("pictures", picture=[b"y" * 1000])
        ring(client)
        until(lambda: lane_client.lane.gate.get() == LaneGate.BROKEN, "the end of the lane")
        with pytest.raises(bp.InternalError, match=r"'pictures' was closed as broken"):
            client.infer("pictures", picture=[b"p"])
        future.cancel()
        assert neighbour.infer("pictures", picture=[jpeg(1)])["crc"][0] == zlib.crc32(jpeg(1))
        check_answer(sent(pool, jpeg(2)), jpeg(2))
    assert "reaches out of the arena" in pool.log


def test_offsets_that_change_after_their_rows_came_in_harm_their_author_alone(pool: Pool) -> None:
    """Rows of both clients wait together in one queue while one writes anything over its places."""
    with pool.client() as client, pool.client() as neighbour, opened_at_last(pool, 4):
        held = client.submit("pictures", picture=[b"gate-4|"])
        until((pool.notes / "met-gate-4").exists, "the worker is held")
        mine = client.submit("pictures", picture=[jpeg(i) for i in range(4)])
        theirs = neighbour.submit("pictures", picture=[jpeg(i) for i in range(4)])
        for each in (client, neighbour):
            lane = lane_client_of(each, "pictures").lane
            tail, head = (word(lane.layout, f"sq_{end}") for end in ("tail", "head"))
            cells = lane.memory.cells()
            until(lambda: cells[tail] == cells[head], "its rows have come in")  # noqa: B023
        (column,) = lane_client_of(client, "pictures").lane.arena_inputs
        column.offsets[:] = np.uint64(2**64 - 1)
        assert column.lengths is not None
        column.lengths[:] = 2**32 - 1
        open_gate(pool, 4)
        right = [zlib.crc32(jpeg(i)) for i in range(4)]
        assert theirs.result()["crc"].tolist() == right
        assert {*mine.result()["length"].tolist()} == {MOST}
        assert held.result()["length"].tolist() in ([7], [MOST])
        assert client.infer("pictures", picture=[jpeg(5)])["crc"][0] == zlib.crc32(jpeg(5))
    until(lambda: not pool.claimed(), "every slot is free")


@pytest.mark.parametrize("seed", [0, 1])
def test_a_client_that_scribbles_over_its_lane_harms_nobody_else(pool: Pool, seed: int) -> None:
    """Any bytes anywhere behind the rings: states, sequences, lengths, places."""
    dice = random.Random(seed)
    with pool.client() as neighbour:
        for round_ in range(5):
            with pool.client() as client:
                for _ in range(30):
                    client.submit("pictures", picture=[b"abc"])
                lane_client = lane_client_of(client, "pictures")
                room, first = (
                    raw_bytes(lane_client),
                    lane_client.lane.layout.columns["state"].offset,
                )
                for _ in range(dice.randrange(300)):
                    at = dice.randrange(first, 1 << 14) & ~7
                    room[at : at + 8] = dice.choice(NONSENSE)(dice)
                ring(client)
                found = neighbour.infer("pictures", picture=[jpeg(round_)])
                assert found["crc"].tolist() == [zlib.crc32(jpeg(round_))]
    until(lambda: not pool.lanes(), "the end of every lane")
