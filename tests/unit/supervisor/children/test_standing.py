"""Who has not moved since a time, which the service manager's watchdog is to hear of."""

from __future__ import annotations

import pytest

from batchpool.shm.heartbeat import BATCHER, frontend_post
from tests.unit.supervisor.children.watch import ALL, NAMES, Watch, child


def standing(watch: Watch, since_ns: int) -> list[str]:
    return watch.watchdog.standing(watch.children, since_ns)


@pytest.mark.parametrize("stall_timeout_s", [0.0, 4.0])
def test_who_has_stamped_since_then_does_not_stand(stall_timeout_s: float) -> None:
    watch = Watch(stall_timeout_s)
    watch.run(10, *ALL)
    since_ns = watch.now_ns
    watch.now_ns += 1
    assert standing(watch, since_ns + 1) == [f"{n} (pid {10 + i})" for i, n in enumerate(NAMES)]
    watch.beat(BATCHER, frontend_post(1))
    assert standing(watch, since_ns + 1) == ["frontend 0 (pid 11)"]
    watch.beat(frontend_post(0))
    assert standing(watch, since_ns + 1) == []


def test_a_batcher_that_is_not_there_stands_until_the_next_one_moves() -> None:
    watch = Watch()
    watch.run(1, *ALL)
    since_ns = watch.now_ns + 1
    watch.children[BATCHER] = None
    watch.run(1, *ALL[1:])
    assert standing(watch, since_ns) == ["batcher"]
    watch.children[BATCHER] = child("batcher", 99, watch.now_ns)
    assert standing(watch, since_ns) == ["batcher (pid 99)"]
    watch.run(1, *ALL)
    assert standing(watch, since_ns) == []


def test_a_front_end_that_is_not_there_or_starts_holds_nothing_up() -> None:
    watch = Watch()
    watch.run(1, *ALL)
    since_ns = watch.now_ns + 1
    watch.children[frontend_post(0)] = None
    watch.children[frontend_post(1)] = child("frontend 1", 98, watch.now_ns + 1)
    watch.run(1, BATCHER)
    assert standing(watch, since_ns) == []


def test_whom_a_debugger_holds_does_not_stand() -> None:
    watch = Watch()
    watch.traced |= {10, 12}
    watch.run(1, *ALL)
    assert standing(watch, watch.now_ns + 1) == ["frontend 0 (pid 11)"]
