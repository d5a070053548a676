"""Callers that wait for room which no completion tells of, in both clients, by the test's clock."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import numpy as np
import pytest

from batchpool.client.aio_driver import LoopDriver
from batchpool.client.arena_lane_client import ArenaLaneClient
from batchpool.client.call import Call
from batchpool.client.infer import infer, run_blocking
from batchpool.client.loop import ClientLoop
from batchpool.client.pending_request import PendingRequest
from batchpool.client.pool_facts import ModelFacts
from batchpool.client.reply import Reply
from batchpool.client.sync_driver import ThreadDriver
from batchpool.core.errors import DeadlineExceeded
from tests.unit.client import test_arena_lane_client as arena
from tests.unit.client.lane_clients import MS, NOW, S
from tests.unit.client.scene import Scene, is_rung
from tests.unit.inprocess.clock import run, turns

# Of 3,686 bytes that may be claimed 3,072 are: a small row fits, a large one does not.
UNDER_WAY, LARGE, SMALL = ([768] * 4, 0), ([768], 16), ([1], 0)


def lane_with_arena(scene: Scene, tag: Reply | None = None) -> ArenaLaneClient:
    """The lane of model m in the live session has an arena from now on, most of which is used."""
    lane_client = arena.client()
    scene.session.lane_set["m"] = lane_client
    scene.session.models["m"] = ModelFacts(0, arena.SPEC, 0.9, 30.0, 4)
    arena.send(lane_client, arena.rows(*UNDER_WAY[0]), now_ns=NOW, tag=tag)
    return lane_client


def call_of(rows: tuple[list[int], int], timeout_s: float) -> Call:
    wanted = arena.rows(*rows[0], boxes=rows[1])
    pictures = wanted.tensors["picture"].tolist()
    boxes = np.full((wanted.n, rows[1], 4), 7, np.int16)
    return Call({**wanted.tensors, "picture": pictures, "boxes": boxes}, timeout_s=timeout_s)


def running(scene: Scene, test: Any) -> None:
    async def main() -> None:
        driver = LoopDriver("here", 10.0, pinned=False)
        scene.connect()
        driver.client_loop = ClientLoop(scene.session)
        await test(driver)
        await driver.close()
        await turns(3)

    run(scene.clock, main())


@pytest.mark.parametrize("end", ["its time is up", "it is cancelled"])
def test_who_gives_up_leaves_the_room_kept_for_it_to_those_who_wait(scene: Scene, end: str) -> None:
    async def test(driver: LoopDriver) -> None:
        forgotten = Reply()
        forgotten.cancel()
        lane_client = lane_with_arena(scene, forgotten)
        claimed = lane_client.allocator.claimed
        large, small = call_of(LARGE, 0.3), call_of(SMALL, 5.0)
        first = asyncio.create_task(infer(driver, "m", large))
        await turns(3)
        second = asyncio.create_task(infer(driver, "m", small))
        await asyncio.sleep(0.29)
        assert lane_client.allocator.claimed == claimed, "room is kept for the large row"
        if end == "it is cancelled":
            first.cancel()
        await asyncio.wait([first], timeout=0.02)
        await turns(3)
        assert lane_client.allocator.claimed == claimed + 1
        assert first.cancelled() or isinstance(first.exception(), DeadlineExceeded)
        second.cancel()
        await turns(3)

    running(scene, test)


@pytest.mark.interpreted
def test_a_loop_looks_for_room_each_half_second_though_nothing_rings(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(driver: LoopDriver) -> None:
        lane_client = scene.lane_client
        has_room = lambda rows, now_ns, priority: now_ns >= NOW + 1200 * MS  # noqa: E731
        monkeypatch.setattr(lane_client, "has_room", has_room)
        call = Call({"x": np.ones((1, 4), np.float32)}, timeout_s=9.0)
        task = asyncio.create_task(infer(driver, "m", call))
        await asyncio.sleep(1.19)
        assert lane_client.allocator.claimed == 0
        await asyncio.sleep(0.5)
        assert lane_client.allocator.claimed == 1
        task.cancel()
        await turns(3)

    running(scene, test)


def test_a_loop_forgets_who_has_given_up(scene: Scene) -> None:
    async def test(driver: LoopDriver) -> None:
        assert driver.client_loop is not None
        tasks = [asyncio.create_task(driver.client_loop.room()) for _ in range(3)]
        await turns(1)
        tasks[1].cancel()
        await turns(2)
        assert len(driver.client_loop._waiting) == 2
        driver.client_loop.wake_waiting()
        await turns(2)
        assert [task.cancelled() for task in tasks] == [False, True, False]
        assert all(task.done() for task in tasks)
        assert not driver.client_loop._waiting

    running(scene, test)


def test_a_thread_that_gives_up_tells_those_who_wait(driver: ThreadDriver, scene: Scene) -> None:
    lane_client = lane_with_arena(scene)
    large, small = call_of(LARGE, 0.3), arena.rows(1)
    large.check(lane_client, scene.session.facts("m"))
    assert not run_blocking(driver.submit(lane_client, large.rows, large, deque[PendingRequest]()))
    assert not lane_client.has_room(small, NOW)
    driver.reaper._wanting_room += 1  # another thread's
    with pytest.raises(DeadlineExceeded):
        run_blocking(driver.wait_for_room(lane_client, large.rows, large))
    assert is_rung(scene.session.self_bell)
    assert lane_client.has_room(small, scene.clock())
    assert scene.clock() < NOW + S, "the room would be kept still"


@pytest.mark.interpreted
def test_a_thread_looks_for_room_each_half_second_though_nothing_rings(
    driver: ThreadDriver, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane_client, call = scene.lane_client, scene.call(timeout_s=9.0)
    has_room = lambda rows, now_ns, priority: now_ns >= NOW + 1200 * MS  # noqa: E731
    monkeypatch.setattr(lane_client, "has_room", has_room)
    run_blocking(driver.wait_for_room(lane_client, call.rows, call))
    assert scene.clock() == NOW + 1500 * MS
