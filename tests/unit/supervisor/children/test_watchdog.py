"""The watchdog under a clock of the test's own: which processes are killed, when, and which not."""

from __future__ import annotations

import logging
import os
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.config.schema import ModelConfig
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.layout.segments import REFUSED_LANE, worker_layout
from batchpool.shm.heartbeat import BATCHER, frontend_word
from batchpool.shm.segment import create, map_checked
from batchpool.shm.worker_segment import WorkerSegment
from batchpool.supervisor.children.child import ProcessSlot
from batchpool.supervisor.children.worker_slot import WorkerSlot
from tests.unit.supervisor.children.watchdog_scene import ALL, NAMES, WatchdogScene, child

S = 1_000_000_000


@pytest.mark.parametrize("post", ALL)
def test_who_stamps_no_more_is_killed_and_nobody_else(
    post: int, caplog: pytest.LogCaptureFixture
) -> None:
    scene = WatchdogScene()
    scene.run(10, *ALL)
    others = [p for p in ALL if p != post]
    scene.run(4, *others)
    assert scene.killed() == []
    with caplog.at_level(logging.ERROR, "batchpool.supervisor"):
        scene.run(0.25, *others)
        assert scene.killed() == [NAMES[post]]
        scene.run(60, *others)
    assert scene.killed() == [NAMES[post]], "once; its end is on the way"
    victim = scene.of(post)
    assert victim.terminating
    assert victim.reason() == "made no progress for more than stall_timeout_s = 4"
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{NAMES[post]} (pid {10 + post}) makes no progress for more than"
        " stall_timeout_s = 4: killing it"
    )


@settings(max_examples=50)
@given(
    st.floats(0.1, 30),
    st.lists(st.tuples(st.floats(0, 100), st.sampled_from(ALL)), max_size=6),
)
def test_nobody_dies_of_what_was_not_watched(
    stall_timeout_s: float, breaks: list[tuple[float, int]]
) -> None:
    """Breaks of all, of any length, each followed by a period in which everybody stamps late."""
    scene = WatchdogScene(stall_timeout_s)
    scene.run(stall_timeout_s, *ALL)
    for seconds, last in breaks:
        scene.sleep(seconds + stall_timeout_s)
        assert scene.killed() == []
        scene.run(0.9 * stall_timeout_s, *(p for p in ALL if p != last))
        scene.run(scene.watchdog.look_ns / S, last)
    assert scene.killed() == []


def test_a_break_is_longer_than_half_the_limit() -> None:
    scene = WatchdogScene()
    scene.run(1, *ALL)
    scene.sleep(2)  # not one yet
    scene.run(2)
    assert scene.killed() == []
    scene.run(0.25)
    assert scene.killed() == list(NAMES)
    scene = WatchdogScene()
    scene.run(1, *ALL)
    scene.sleep(2.1)
    scene.run(4)
    assert scene.killed() == []
    scene.run(0.25)
    assert scene.killed() == list(NAMES)


def test_who_has_not_stamped_yet_is_still_starting() -> None:
    scene = WatchdogScene()
    scene.run(599, BATCHER, frontend_word(1))
    assert scene.killed() == []
    scene.run(2, BATCHER, frontend_word(1))
    assert scene.killed() == ["frontend 0"]
    assert scene.of(1).reason() == "did not start within 600 s"


def test_a_short_load_timeout_is_the_models_affair() -> None:
    scene = WatchdogScene(load_timeout_s=1)
    scene.run(60)
    assert scene.killed() == []
    scene.run(0.25)
    assert [scene.of(post).reason() for post in ALL] == ["did not start within 60 s"] * 3


def test_the_next_one_is_not_judged_by_the_heartbeats_of_the_one_before() -> None:
    scene = WatchdogScene()
    scene.run(1, *ALL)
    scene.children[BATCHER] = None
    scene.run(20, *ALL[1:])
    assert scene.killed() == []
    scene.children[BATCHER] = child("batcher", 99, scene.now_ns)
    scene.run(20, *ALL[1:])
    assert scene.killed() == [], "its start may take long"
    scene.run(1, *ALL)
    scene.run(4.25, *ALL[1:])
    assert scene.killed() == ["batcher"], "from its first stamp on it is like all others"


def test_before_the_pool_was_ready_only_the_start_is_limited() -> None:
    scene = WatchdogScene()
    scene.was_ready = False
    scene.run(1, *ALL)
    scene.run(100, BATCHER)
    assert scene.killed() == []
    scene.was_ready = True
    scene.run(0.25, BATCHER)
    assert scene.killed() == list(NAMES[1:])


def test_zero_switches_it_off() -> None:
    scene = WatchdogScene(stall_timeout_s=0)
    scene.run(1, *ALL)
    scene.run(3000)
    assert scene.killed() == []
    assert scene.state_page.stalled.get() == 0


@pytest.mark.parametrize("held_s", [3.0, 4.25, 60.0, 60.25, 61.0, 61.75, 62.0])
def test_a_process_under_a_debugger_is_left_alone_and_has_time_after(held_s: float) -> None:
    scene = WatchdogScene()
    scene.traced.add(scene.of(BATCHER).pid)
    scene.run(1, *ALL)
    scene.run(held_s, *ALL[1:])
    assert scene.killed() == []
    assert scene.asked.count(scene.of(BATCHER).pid) <= held_s / 2, "not with every look"
    assert set(scene.asked) == {scene.of(BATCHER).pid}, "and not of those who stamp"
    scene.traced.clear()
    scene.run(1.9, *ALL[1:])
    assert scene.killed() == []
    scene.run(2.5, *ALL[1:])
    assert scene.killed() == ["batcher"]


def test_who_gets_no_processor_is_not_killed_for_it() -> None:
    scene = WatchdogScene()
    scene.run(1, *ALL)
    scene.run(1000, *ALL[1:], starving=1.0)
    assert scene.killed() == []
    scene.run(2, *ALL[1:])
    assert scene.killed() == [], "what it had before it starved counts, but no more"
    scene.run(2.25, *ALL[1:])
    assert scene.killed() == ["batcher"]


def test_an_endless_loop_with_a_quarter_of_a_processor_has_its_time_nevertheless() -> None:
    scene = WatchdogScene()
    scene.run(1, *ALL)
    scene.run(12, *ALL[1:], starving=0.75)
    assert scene.killed() == []
    scene.run(4, *ALL[1:], starving=0.75)
    assert scene.killed() == ["batcher"]


def test_many_threads_that_wait_are_no_better_exemption_than_one() -> None:
    scene = WatchdogScene()
    scene.run(1, *ALL)
    scene.run(20, *ALL[1:], starving=50.0)
    assert scene.killed() == []
    scene.run(4.25, *ALL[1:])
    assert scene.killed() == ["batcher"], "nothing is saved up"


def test_an_exemption_of_an_earlier_time_is_worth_nothing_later() -> None:
    scene = WatchdogScene()
    scene.run(1, *ALL)
    scene.run(20, *ALL[1:], starving=1.0)
    scene.run(10, *ALL, starving=1.0)
    scene.run(4, *ALL[1:])
    assert scene.killed() == []
    scene.run(0.25, *ALL[1:])
    assert scene.killed() == ["batcher"]


def test_the_pool_state_tells_of_a_batcher_that_stalls_until_it_moves_again() -> None:
    scene = WatchdogScene()
    scene.run(1, *ALL)
    scene.run(2, *ALL[1:])
    assert scene.state_page.stalled.get() == 0
    scene.run(0.25, *ALL[1:])
    assert scene.state_page.stalled.get() == 1
    scene.run(0.25, *ALL)
    assert scene.state_page.stalled.get() == 0
    scene.run(4.25, *ALL[1:])
    assert scene.killed() == ["batcher"]
    scene.children[BATCHER] = child("batcher", 99, scene.now_ns)
    scene.run(3, *ALL[1:])
    assert scene.state_page.stalled.get() == 1, "the next one does not move yet"
    scene.run(0.25, *ALL)
    assert scene.state_page.stalled.get() == 0


def test_a_front_end_that_stalls_is_not_on_the_pool_state_page() -> None:
    scene = WatchdogScene()
    scene.run(1, *ALL)
    scene.run(3.5, BATCHER)
    assert scene.state_page.stalled.get() == 0


# -- workers --------------------------------------------------------------------------------


def with_worker(
    scene: WatchdogScene, *, generates: bool = False
) -> tuple[WorkerSlot, WorkerSegment]:
    layout = worker_layout(8, 3)
    fd = create(layout, sealed=False)
    segment = WorkerSegment(map_checked(fd, layout), layout)
    os.close(fd)
    segment.ready.set(1)
    config = ModelConfig(import_name="a:B", batch_timeout_s=30.0)
    model = SimpleNamespace(config=config, spec=SimpleNamespace(generates=generates))
    server = ServerConfig(load_timeout_s=scene.load_timeout_s)
    worker_slot = WorkerSlot(
        0, cast(Any, None), ProcessSlot("worker 0 of b"), cast(Any, model), server
    )
    worker_slot.child, worker_slot.worker_segment = (
        child("worker 0 of b", 50, scene.now_ns),
        segment,
    )
    scene.worker_slots = [worker_slot]
    return worker_slot, segment


def test_a_worker_has_load_timeout_s_to_load() -> None:
    scene = WatchdogScene(load_timeout_s=5)
    worker_slot, _ = with_worker(scene)
    scene.run(5, *ALL)
    assert scene.killed() == []
    scene.run(0.25, *ALL)
    assert scene.killed() == ["worker 0 of b"]
    assert worker_slot.child is not None
    assert worker_slot.child.reason() == "did not load within load_timeout_s = 5"


def test_a_worker_has_batch_timeout_s_for_a_batch() -> None:
    scene = WatchdogScene()
    worker_slot, segment = with_worker(scene)
    worker_slot.ready = True
    scene.run(100, *ALL)
    segment.progress_ns.set(scene.now_ns)
    segment.running.set(1)
    scene.run(30, *ALL)
    assert scene.killed() == []
    scene.run(0.25, *ALL)
    assert scene.killed() == ["worker 0 of b"]
    assert worker_slot.child is not None
    assert worker_slot.child.reason() == "was stuck in a batch for more than batch_timeout_s = 30"


def test_a_generator_has_batch_timeout_s_for_each_step() -> None:
    scene = WatchdogScene()
    worker_slot, segment = with_worker(scene, generates=True)
    worker_slot.ready = True
    segment.running.set(1)
    for _ in range(9):
        segment.progress_ns.set(scene.now_ns)
        scene.run(20, *ALL)
    assert scene.killed() == []
    scene.run(10.25, *ALL)
    assert worker_slot.child is not None
    assert worker_slot.child.reason() == "was stuck in a step for more than batch_timeout_s = 30"


def test_a_worker_has_batch_timeout_s_to_take_a_lane_while_it_is_idle() -> None:
    """One that was stopped while idle gets no batch of a new client, which waits for the lane."""
    scene = WatchdogScene()
    worker_slot, segment = with_worker(scene)
    worker_slot.ready = True
    worker_slot.untaken = {0: 7, 1: 8, 2: 9}
    segment.lanes[0] = 7
    segment.lanes[1] = REFUSED_LANE
    scene.run(0.25, *ALL)
    assert worker_slot.untaken == {2: 9}
    segment.lanes[2] = 5  # an earlier lane of that number
    scene.run(29, *ALL)
    assert scene.killed() == []
    scene.run(1.25, *ALL)
    assert scene.killed() == ["worker 0 of b"]
    assert worker_slot.child is not None
    assert worker_slot.child.reason() == "took no new lane for more than batch_timeout_s = 30"


def test_a_lane_that_is_taken_in_time_ends_the_wait() -> None:
    scene = WatchdogScene()
    worker_slot, segment = with_worker(scene)
    worker_slot.ready = True
    for serial in (7, 8):
        worker_slot.untaken = {0: serial}
        scene.run(29, *ALL)
        segment.lanes[0] = serial
        scene.run(1, *ALL)
    assert scene.killed() == []
    assert worker_slot.untaken == {}


def test_a_worker_that_was_stopped_with_the_whole_pool_gets_its_time_anew() -> None:
    scene = WatchdogScene()
    worker_slot, segment = with_worker(scene)
    worker_slot.ready = True
    segment.progress_ns.set(scene.now_ns)
    segment.running.set(1)
    scene.run(10, *ALL)
    scene.sleep(1000)
    scene.run(29, *ALL)
    assert scene.killed() == []
    scene.run(1.25, *ALL)
    assert scene.killed() == ["worker 0 of b"]
