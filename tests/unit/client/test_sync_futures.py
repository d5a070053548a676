"""Futures of bp.Client: the thread that resolves them, their deadlines, cancels and the end."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError, wait

import pytest

from batchpool.client import sync_driver
from batchpool.client.infer import run_blocking
from batchpool.client.sync_driver import ThreadDriver
from batchpool.core.errors import DeadlineExceeded, ModelError, Overloaded, PoolStopped, Status
from batchpool.core.layout.states import LaneGate
from tests.unit.client.lane_clients import MS, NOW, answer
from tests.unit.client.scene import WAIT_S, CountedCondition, Scene, is_rung


@pytest.fixture
def driver(scene: Scene) -> Iterator[ThreadDriver]:
    """Its thread waits for as long as nothing rings."""
    scene.waits.holds = True
    driver = ThreadDriver("here", 10.0, pinned=False)
    yield driver
    driver.close()
    assert scene.waits.unheard == 0, "a thread was not woken"


def test_a_future_is_resolved_when_the_bell_rings(driver: ThreadDriver, scene: Scene) -> None:
    future = driver.submit_future(scene.lane_client, scene.call(2))
    assert scene.rings == 1
    scene.waits.begun.get(timeout=WAIT_S)
    scene.answer()
    assert future.result(WAIT_S)["y"].tolist() == answer(2)
    assert scene.lane_client.allocator.claimed == 0


def test_a_future_that_is_resolved_is_gone_with_its_last_reference(
    driver: ThreadDriver, scene: Scene
) -> None:
    future = driver.submit_future(scene.lane_client, scene.call(2))
    scene.waits.begun.get(timeout=WAIT_S)
    scene.answer()
    future.result(WAIT_S)
    scene.waits.begun.get(timeout=WAIT_S)  # the thread waits again
    gone = weakref.ref(future)
    gc.disable()
    try:
        del future
        assert gone() is None, "it waits for the collection of garbage"
    finally:
        gc.enable()


def test_an_error_of_a_row_is_its_futures_alone(driver: ThreadDriver, scene: Scene) -> None:
    futures = [driver.submit_future(scene.lane_client, scene.call()) for _ in range(2)]
    scene.pool.admit()
    scene.pool.finish(scene.pool.rows[0], status=Status.MODEL_ERROR, text="no")
    scene.pool.finish(scene.pool.rows[1])
    scene.session.batchers_end.ring()
    assert isinstance(futures[0].exception(WAIT_S), ModelError)
    assert futures[1].result(WAIT_S)["y"].tolist() == answer(1)


def test_a_full_lane_refuses_a_future(driver: ThreadDriver, scene: Scene) -> None:
    driver.submit_future(scene.lane_client, scene.call(9))
    with pytest.raises(Overloaded):
        driver.submit_future(scene.lane_client, scene.call())
    assert (driver.reaper.torn, scene.rings) == (False, 1)


def test_a_shorter_deadline_wakes_the_thread_and_is_met(driver: ThreadDriver, scene: Scene) -> None:
    long = driver.submit_future(scene.lane_client, scene.call())
    assert scene.waits.begun.get(timeout=WAIT_S) == NOW + 500 * MS
    short = driver.submit_future(scene.lane_client, scene.call(timeout_s=0.1))
    assert scene.waits.begun.get(timeout=WAIT_S) == NOW + 100 * MS
    scene.clock.now_ns = NOW + 100 * MS
    scene.session.self_bell.ring()
    with pytest.raises(DeadlineExceeded, match=r"'m' did not answer within 0\.1 s"):
        short.result(WAIT_S)
    assert scene.rings == 3, "the batcher hears of the cancel"
    assert scene.lane_client.lane.cancel.tolist()[:2] == [0, 1]
    assert not long.done()


def test_a_thread_that_follows_hears_of_a_shorter_deadline(
    driver: ThreadDriver, scene: Scene
) -> None:
    go_on = threading.Event()
    changed = driver.reaper.changed = CountedCondition(driver.reaper.lock, scene.waits)
    scene.waits.steps.append(lambda: go_on.wait(WAIT_S))
    driver.submit_future(scene.lane_client, scene.call())
    scene.waits.begun.get(timeout=WAIT_S)
    driver.submit_future(scene.lane_client, scene.call(timeout_s=0.4))
    assert changed.words == 1
    assert is_rung(scene.session.self_bell)
    driver.submit_future(scene.lane_client, scene.call())
    assert changed.words == 1, "a deadline after the next look wakes nobody"
    go_on.set()


def test_a_thread_that_follows_another_looks_for_late_futures_too(
    driver: ThreadDriver, scene: Scene
) -> None:
    reaper = driver.reaper
    reaper.changed = CountedCondition(reaper.lock, scene.waits)
    reaper.busy = True
    scene.waits.steps += [
        lambda: setattr(scene.clock, "now_ns", NOW + 500 * MS),
        lambda: setattr(scene.clock, "now_ns", NOW + 700 * MS),
        lambda: setattr(reaper, "closed", True),  # it ends
    ]
    future = driver.submit_future(scene.lane_client, scene.call(timeout_s=0.7))
    with pytest.raises(DeadlineExceeded):
        future.result(WAIT_S)
    if (thread := reaper.thread()) is not None:
        thread.join(WAIT_S)
    reaper.busy = False
    assert scene.waits.until_ns == [NOW + 500 * MS, NOW + 700 * MS, NOW + 1200 * MS]


def test_a_cancel_takes_the_rows_back_once(driver: ThreadDriver, scene: Scene) -> None:
    future = driver.submit_future(scene.lane_client, scene.call(2))
    for _ in range(2):
        assert future.cancel()
        assert wait([future], 0).done == {future}, "whoever waits for it hears of the cancel"
        assert scene.lane_client.lane.cancel.tolist()[:2] == [1, 1]
        assert scene.rings == 2
    with pytest.raises(CancelledError):
        future.result(WAIT_S)


def test_a_cancel_of_rows_that_are_done_is_no_news_for_the_batcher(
    driver: ThreadDriver, scene: Scene
) -> None:
    go_on = threading.Event()
    scene.waits.steps.append(lambda: go_on.wait(WAIT_S))
    future = driver.submit_future(scene.lane_client, scene.call())
    scene.answer_unheard()
    assert future.cancel()
    assert scene.rings == 1
    go_on.set()


def test_a_cancel_in_the_child_of_a_fork_touches_nothing(
    driver: ThreadDriver, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    future = driver.submit_future(scene.lane_client, scene.call())
    monkeypatch.setattr(sync_driver, "this_process", lambda: 1)
    assert future.cancel()
    assert (scene.rings, scene.lane_client.lane.cancels.get()) == (1, 0)


# -- ends -----------------------------------------------------------------------------------


def test_closing_fails_futures_wakes_their_thread_and_ends_it(
    driver: ThreadDriver, scene: Scene
) -> None:
    future = driver.submit_future(scene.lane_client, scene.call())
    scene.waits.begun.get(timeout=WAIT_S)
    thread = driver.reaper.thread()
    assert thread is not None
    driver.close()
    assert not thread.is_alive()
    assert scene.session.closed
    with pytest.raises(PoolStopped, match="this client was closed with requests under way"):
        future.result(0)
    for step in (
        lambda: driver.open_lane_client("m"),
        lambda: driver.submit_future(scene.lane_client, scene.call()),
        driver.models,
    ):
        with pytest.raises(PoolStopped, match="this client is closed"):
            step()
    assert len(scene.sessions) == 1


def test_closing_ends_the_session_only_when_nobody_waits_on_its_bell(
    driver: ThreadDriver, scene: Scene
) -> None:
    call, ended = scene.call(), []
    under_way = deque([scene.lane_client.submit(call.rows, call.start_ns, call.deadline_ns)])

    def wait_for_it() -> None:
        with pytest.raises(PoolStopped):
            run_blocking(driver.result(scene.lane_client, under_way, call))
        ended.append(scene.session.closed)

    thread = threading.Thread(target=wait_for_it)
    thread.start()
    scene.waits.begun.get(timeout=WAIT_S)
    driver.close()
    assert scene.session.closed
    thread.join(WAIT_S)
    assert ended == [True]


def test_a_pool_that_stops_fails_futures_and_later_ones_have_the_new_session(
    driver: ThreadDriver, scene: Scene
) -> None:
    future = driver.submit_future(scene.lane_client, scene.call())
    scene.waits.begun.get(timeout=WAIT_S)
    scene.stop()
    with pytest.raises(
        PoolStopped, match="the supervisor has stopped; a request that was under way may"
    ):
        future.result(WAIT_S)
    again = driver.submit_future(driver.open_lane_client("m"), scene.call())
    scene.answer()
    assert again.result(WAIT_S)["y"].tolist() == answer(1)
    assert [session.closed for session in scene.sessions] == [True, False]


def test_requests_that_a_stopped_pool_had_not_taken_are_known_not_to_have_run(
    driver: ThreadDriver, scene: Scene
) -> None:
    future = driver.submit_future(scene.lane_client, scene.call())
    scene.waits.begun.get(timeout=WAIT_S)
    scene.stop(orderly=True)
    with pytest.raises(PoolStopped, match="it had not taken this request, which did not run"):
        future.result(WAIT_S)


def test_answers_that_came_before_the_end_are_delivered_by_who_sees_the_end_first(
    driver: ThreadDriver, scene: Scene
) -> None:
    go_on = threading.Event()
    scene.waits.steps.append(lambda: go_on.wait(WAIT_S))
    future = driver.submit_future(scene.lane_client, scene.call())
    scene.waits.begun.get(timeout=WAIT_S)
    scene.answer()
    scene.lane_client.lane.gate.set(int(LaneGate.MOVED))  # so that the lane is looked for
    scene.stop()
    driver.open_lane_client("m")
    assert future.result(0)["y"].tolist() == answer(1)
    go_on.set()


def test_who_sees_first_that_the_pool_has_gone_leaves_the_bell_to_the_thread_on_it(
    driver: ThreadDriver, scene: Scene
) -> None:
    go_on = threading.Event()
    scene.waits.steps.append(lambda: go_on.wait(WAIT_S))
    first, lane_client = scene.session, scene.lane_client
    future = driver.submit_future(lane_client, scene.call())
    scene.waits.begun.get(timeout=WAIT_S)
    lane_client.lane.gate.set(int(LaneGate.MOVED))  # so that the lane is looked for
    scene.stop()
    assert driver.open_lane_client("m") is scene.lane_client
    assert scene.lane_client is not lane_client
    with pytest.raises(PoolStopped):
        future.result(0)
    assert not first.closed, "a thread waits on its bell"
    go_on.set()
    again = driver.submit_future(scene.lane_client, scene.call())
    scene.waits.begun.get(timeout=WAIT_S)
    assert first.closed
    scene.answer()
    assert again.result(WAIT_S)["y"].tolist() == answer(1)


def test_a_torn_session_fails_futures_and_wakes_the_thread_on_its_bell(
    driver: ThreadDriver, scene: Scene
) -> None:
    future = driver.submit_future(scene.lane_client, scene.call())
    scene.waits.begun.get(timeout=WAIT_S)
    driver.reaper.torn = True
    driver.open_lane_client("m")
    with pytest.raises(PoolStopped, match="an exception of a signal handler interrupted a call"):
        future.result(0)
    again = driver.submit_future(scene.lane_client, scene.call())
    scene.waits.begun.get(timeout=WAIT_S)
    assert scene.sessions[0].closed
    scene.answer()
    assert again.result(WAIT_S)["y"].tolist() == answer(1)


def test_a_future_in_a_forked_child_says_that_nobody_resolves_it_there(
    driver: ThreadDriver, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = driver.submit_future(scene.lane_client, scene.call())
    scene.answer()
    assert done.result(WAIT_S)["y"].tolist() == answer(1)
    future = driver.submit_future(scene.lane_client, scene.call())
    with monkeypatch.context() as child:
        child.setattr(sync_driver, "this_process", lambda: 1)
        for wait in (future.result, future.exception):
            with pytest.raises(PoolStopped, match="after a fork the child must open its own"):
                wait()
        assert done.result()["y"].tolist() == answer(1), "it was resolved before"
        assert done.exception() is None
    scene.answer()
    assert future.result(WAIT_S)["y"].tolist() == answer(1)


def test_callbacks_of_futures_run_without_the_lock(driver: ThreadDriver, scene: Scene) -> None:
    """They may wait for a thread that uses the client."""
    done: list[bool] = []
    ended = threading.Event()

    def use_elsewhere(_: object) -> None:
        thread = threading.Thread(target=lambda: done.append(list(driver.models()) == ["m"]))
        thread.start()
        thread.join(WAIT_S / 2)
        done.append(not thread.is_alive())
        ended.set()

    future = driver.submit_future(scene.lane_client, scene.call())
    future.add_done_callback(use_elsewhere)
    scene.waits.begun.get(timeout=WAIT_S)
    scene.answer()
    assert ended.wait(WAIT_S)
    assert done == [True, True]
