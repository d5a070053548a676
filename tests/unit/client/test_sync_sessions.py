"""The sessions of bp.Client: those that end, are torn, or belong to another process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from batchpool.client import sync_driver
from batchpool.client.infer import run_blocking
from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.client.session import Session
from batchpool.client.sync_driver import ThreadDriver
from batchpool.control.messages import Facts
from batchpool.core.errors import Moved, PoolStopped
from batchpool.core.layout.states import LaneGate
from batchpool.core.tensors.rows import Rows
from tests.unit.client.lane_clients import NOW, S, new_lane_client
from tests.unit.client.scene import CountedCondition, Scene
from tests.unit.client.test_sync_driver import outputs, sent
from tests.unit.control.packets import receive_form


class Struck(BaseException):
    """Raised where a signal handler could raise."""


class Strikes:
    shape = (1, 4)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise Struck


@pytest.mark.parametrize("kind", ["call", "future", "drop"])
def test_a_call_that_is_struck_in_a_change_ends_the_session(
    driver: ThreadDriver, scene: Scene, kind: str
) -> None:
    def strike() -> Iterator[PendingRequest]:
        raise Struck
        yield

    call, lane_client = scene.call(), scene.lane_client
    call.rows = Rows(1, {"x": Strikes()}, {})  # type: ignore[dict-item]
    with pytest.raises(Struck):
        if kind == "call":
            run_blocking(driver.submit(lane_client, call.rows, call, deque()))
        elif kind == "future":
            driver.submit_future(lane_client, call)
        else:
            driver.drop(lane_client, strike())
    assert driver.open_lane_client("m") is not lane_client
    assert [session.closed for session in scene.sessions] == [True, False]
    with pytest.raises(Moved):  # so that the call goes on with the new lane
        driver.submit_future(lane_client, scene.call())


def test_closing_leaves_the_bells_open_while_somebody_waits_on_them(
    driver: ThreadDriver, scene: Scene
) -> None:
    reaper, closed = driver.reaper, list[bool]()
    reaper.changed = CountedCondition(reaper.lock, scene.waits)
    reaper.busy = True

    def leave() -> None:
        closed.append(scene.session.closed)
        reaper.busy = False

    scene.waits.steps.append(leave)
    driver.close()
    assert (closed, scene.session.closed) == ([False], True)


def test_a_pool_that_stops_fails_the_call_under_way_and_the_next_one_connects_anew(
    driver: ThreadDriver, scene: Scene
) -> None:
    call, under_way = sent(driver, scene)
    scene.waits.steps.append(scene.stop)
    with pytest.raises(PoolStopped, match="the session with the pool at here has ended; the"):
        outputs(driver, scene, call, under_way)
    assert scene.clock() == NOW
    assert (scene.session.closed, driver.reaper.session) == (True, None)
    with pytest.raises(PoolStopped, match="the pool at here has stopped"):
        driver.facts("m")
    driver.drop(scene.lane_client, under_way)
    driver.leave_moved()
    assert driver.open_lane_client("m") is scene.lane_client
    assert len(scene.sessions) == 2


def test_a_client_without_rows_under_way_sees_by_itself_that_the_pool_has_gone(
    driver: ThreadDriver, scene: Scene
) -> None:
    scene.stop()
    assert driver.open_lane_client("m") is scene.lane_client
    assert [session.closed for session in scene.sessions] == [True, False]
    assert not driver.reaper.torn


def test_with_rows_under_way_it_is_left_to_the_thread_that_waits(
    driver: ThreadDriver, scene: Scene
) -> None:
    sent(driver, scene)
    scene.stop()
    assert driver.open_lane_client("m") is scene.lane_client
    assert len(scene.sessions) == 1


def test_a_lane_of_an_ended_session_takes_no_rows(driver: ThreadDriver, scene: Scene) -> None:
    call, other = scene.call(), new_lane_client()
    with pytest.raises(PoolStopped):
        run_blocking(driver.submit(other, call.rows, call, deque()))
    other.lane.gate.set(int(LaneGate.MOVED))
    other.sees_move()
    with pytest.raises(Moved):
        run_blocking(driver.submit(other, call.rows, call, deque()))
    with pytest.raises(Moved):
        driver.submit_future(other, call)


@pytest.mark.parametrize("when", ["reap", "result", "leave_moved"])
def test_the_pool_is_told_when_the_last_row_has_left_a_moved_lane(
    driver: ThreadDriver, scene: Scene, when: str
) -> None:
    lane_client, session = scene.lane_client, scene.session
    call, under_way = sent(driver, scene)
    lane_client.lane.gate.set(int(LaneGate.MOVED))
    lane_client.lane.generation.set(1)
    scene.answer_unheard()
    if when == "result":
        outputs(driver, scene, call, under_way)
    else:
        lane_client.release(under_way.popleft())
    if when == "leave_moved":
        driver.leave_moved()
    if when == "reap":
        session.lane_set["n"] = other = new_lane_client()
        with driver.reaper.lock:
            driver.reaper.wait(other, lambda: bool(scene.waits.until_ns), NOW + S)
    assert receive_form(session.theirs)[0] == {"op": "left", "serial": 7}


def test_the_names_of_the_models_are_those_of_now(driver: ThreadDriver, scene: Scene) -> None:
    assert list(driver.models()) == ["m"]
    scene.session.state_page.edition.set(1)
    scene.session.theirs.send(Facts((), {}, 1))
    assert driver.models() == {}


def test_the_options_of_the_client_reach_its_connections_and_its_lanes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float]] = []
    lane_client = new_lane_client()

    def new(session: Session, model: str, timeout_s: float) -> LaneClient:
        asked.append((model, timeout_s))
        return lane_client

    monkeypatch.setattr(Session, "new_lane_client", new)
    driver = ThreadDriver("there", 3.0, pinned=True)
    assert driver.open_lane_client("n") is lane_client
    driver.close()
    assert (scene.connected, asked) == ([("there", 3.0, True)], [("n", 3.0)])


def test_after_a_fork_the_client_is_the_parents(
    driver: ThreadDriver, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert driver.is_ours
    monkeypatch.setattr(sync_driver, "this_process", lambda: 1)
    assert not driver.is_ours
    for step in (driver.models, lambda: driver.open_lane_client("m")):
        with pytest.raises(PoolStopped, match="after a fork the child must open its own bp"):
            step()
