"""Processes without a heartbeat since a time, of which the service manager's watchdog is told."""

from __future__ import annotations

import pytest

from batchpool.shm.heartbeat import BATCHER, frontend_word
from tests.unit.supervisor.children.watchdog_scene import ALL, NAMES, WatchdogScene, child


def silent(scene: WatchdogScene, since_ns: int) -> list[str]:
    return scene.watchdog.without_heartbeat(scene.children, since_ns)


@pytest.mark.parametrize("stall_timeout_s", [0.0, 4.0])
def test_who_has_stamped_since_then_does_not_stand(stall_timeout_s: float) -> None:
    scene = WatchdogScene(stall_timeout_s)
    scene.run(10, *ALL)
    since_ns = scene.now_ns
    scene.now_ns += 1
    assert silent(scene, since_ns + 1) == [f"{n} (pid {10 + i})" for i, n in enumerate(NAMES)]
    scene.beat(BATCHER, frontend_word(1))
    assert silent(scene, since_ns + 1) == ["frontend 0 (pid 11)"]
    scene.beat(frontend_word(0))
    assert silent(scene, since_ns + 1) == []


def test_a_batcher_that_is_not_there_stands_until_the_next_one_moves() -> None:
    scene = WatchdogScene()
    scene.run(1, *ALL)
    since_ns = scene.now_ns + 1
    scene.children[BATCHER] = None
    scene.run(1, *ALL[1:])
    assert silent(scene, since_ns) == ["batcher"]
    scene.children[BATCHER] = child("batcher", 99, scene.now_ns)
    assert silent(scene, since_ns) == ["batcher (pid 99)"]
    scene.run(1, *ALL)
    assert silent(scene, since_ns) == []


def test_a_front_end_that_is_not_there_or_starts_holds_nothing_up() -> None:
    scene = WatchdogScene()
    scene.run(1, *ALL)
    since_ns = scene.now_ns + 1
    scene.children[frontend_word(0)] = None
    scene.children[frontend_word(1)] = child("frontend 1", 98, scene.now_ns + 1)
    scene.run(1, BATCHER)
    assert silent(scene, since_ns) == []


def test_whom_a_debugger_holds_does_not_stand() -> None:
    scene = WatchdogScene()
    scene.traced |= {10, 12}
    scene.run(1, *ALL)
    assert silent(scene, scene.now_ns + 1) == ["frontend 0 (pid 11)"]
