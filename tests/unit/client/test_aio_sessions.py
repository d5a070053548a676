"""Sessions and lanes that bp.AsyncClient opens in threads, once for all that need them."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from batchpool.client import aio_driver
from batchpool.client.aio_driver import LoopDriver
from batchpool.client.lane_client import LaneClient
from batchpool.client.session import Session
from batchpool.control.messages import Facts
from batchpool.core.errors import PoolStopped
from batchpool.core.layout.states import LaneGate
from tests.unit.client.lane_clients import new_lane_client
from tests.unit.client.scene import WAIT_S, Scene
from tests.unit.control.packets import receive_form
from tests.unit.inprocess.clock import turns


def connecting(test: Callable[[LoopDriver], Coroutine[Any, Any, None]]) -> None:
    """Run a test on an ordinary loop: threads open what it needs."""

    async def main() -> None:
        async with asyncio.timeout(WAIT_S):
            driver = LoopDriver("here", 10.0, pinned=True)
            await test(driver)
            await driver.close()

    asyncio.run(main())


def test_many_that_need_a_session_at_once_open_one(scene: Scene) -> None:
    async def test(driver: LoopDriver) -> None:
        loops = await asyncio.gather(*(driver.usable() for _ in range(3)))
        assert scene.connected == [("here", 10.0, True)]
        assert loops == [driver.client_loop] * 3
        loops[0].close()
        again = await driver.usable()
        assert (again.over, again.session) == (False, scene.sessions[1])

    connecting(test)


def test_a_caller_that_is_cancelled_leaves_the_opening_to_the_others(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def connect(*arguments: Any, **options: Any) -> Session:
        go_on.wait(WAIT_S)
        return scene.connect()

    async def test(driver: LoopDriver) -> None:
        first, second = (asyncio.create_task(driver.usable()) for _ in range(2))
        await turns(2)
        first.cancel()
        await turns(2)
        assert first.cancelled()
        go_on.set()
        assert (await second).session is scene.session
        assert len(scene.sessions) == 1

    monkeypatch.setattr(Session, "connect", connect)
    connecting(test)


def test_closing_waits_for_what_is_being_opened_and_closes_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def connect(*arguments: Any, **options: Any) -> Session:
        go_on.wait(WAIT_S)
        return scene.connect()

    async def test(driver: LoopDriver) -> None:
        opening = asyncio.create_task(driver.usable())
        await turns(2)
        closing = asyncio.create_task(driver.close())
        await turns(2)
        assert not closing.done()
        go_on.set()
        await closing
        await asyncio.wait([opening])
        assert scene.session.closed
        assert driver.client_loop is None

    monkeypatch.setattr(Session, "connect", connect)
    connecting(test)


def test_a_connection_that_fails_is_tried_again_by_the_next_caller(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [PoolStopped("not yet")]

    def connect(*arguments: Any, **options: Any) -> Session:
        if errors:
            raise errors.pop()
        return scene.connect()

    async def test(driver: LoopDriver) -> None:
        with pytest.raises(PoolStopped, match="not yet"):
            await driver.usable()
        assert (await driver.usable()).session is scene.session

    monkeypatch.setattr(Session, "connect", connect)
    connecting(test)


def test_an_error_that_no_caller_waits_for_any_more_is_no_surprise_to_the_loop(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, surprises = threading.Event(), list[Any]()

    def connect(*arguments: Any, **options: Any) -> Session:
        go_on.wait(WAIT_S)
        raise PoolStopped("not yet")

    async def test(driver: LoopDriver) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: surprises.append(context))
        caller = asyncio.create_task(driver.usable())
        await turns(2)
        caller.cancel()
        await turns(2)
        closing = asyncio.create_task(driver.close())
        go_on.set()
        await closing
        await turns(2)

    monkeypatch.setattr(Session, "connect", connect)
    connecting(test)
    gc.collect()
    assert surprises == []


def test_a_lane_that_has_moved_is_left_before_the_next_one_is_opened(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = new_lane_client()

    async def test(driver: LoopDriver) -> None:
        first = await driver.lane_client("m")
        first.lane.gate.set(int(LaneGate.MOVED))
        assert await driver.lane_client("m") is second
        assert receive_form(scene.session.theirs)[0] == {"op": "left", "serial": 7}

    monkeypatch.setattr(Session, "new_lane_client", lambda *arguments: second)
    connecting(test)


def test_many_that_need_a_lane_at_once_open_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float]] = []
    lane_client = new_lane_client()

    def new(session: Session, model: str, timeout_s: float) -> LaneClient:
        asked.append((model, timeout_s))
        return lane_client

    async def test(driver: LoopDriver) -> None:
        found = await asyncio.gather(*(driver.lane_client("n") for _ in range(3)))
        assert found == [lane_client] * 3
        assert asked == [("n", 10.0)]
        assert lane_client in scene.session.lane_set.driven

    monkeypatch.setattr(Session, "new_lane_client", new)
    connecting(test)


def test_a_session_that_is_closed_while_a_lane_opens_has_stopped(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def new(session: Session, model: str, timeout_s: float) -> LaneClient:
        raise ValueError("the file descriptor is -1")

    async def test(driver: LoopDriver) -> None:
        with pytest.raises(PoolStopped):
            await driver.lane_client("n")

    monkeypatch.setattr(Session, "new_lane_client", new)
    connecting(test)


def test_a_client_of_another_loop_is_refused(scene: Scene) -> None:
    async def test(driver: LoopDriver) -> None:
        await driver.usable()
        with pytest.raises(RuntimeError, match="belongs to another event loop"):
            await asyncio.to_thread(asyncio.run, driver.usable())

    connecting(test)


def test_after_a_fork_the_client_is_the_parents(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(driver: LoopDriver) -> None:
        await driver.usable()
        with monkeypatch.context() as child:
            child.setattr(aio_driver, "this_process", lambda: 1)
            with pytest.raises(PoolStopped, match=r"must open its own bp\.AsyncClient"):
                await driver.usable()
            await driver.close()
        assert not scene.session.closed, "the session is the parent's"
        await driver.close()
        assert scene.session.closed

    connecting(test)


def test_the_names_of_the_models_are_those_of_now(scene: Scene) -> None:
    async def test(driver: LoopDriver) -> None:
        assert list(await driver.models()) == ["m"]
        scene.session.state_page.edition.set(1)
        scene.session.theirs.send(Facts((), {}, 1))
        assert await driver.models() == {}

    connecting(test)
