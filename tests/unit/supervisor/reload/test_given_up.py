"""Workers that do not end although they were killed: a reload waits for them, but not for ever."""

from __future__ import annotations

from batchpool.core.tensors.spec import ModelSpec
from batchpool.supervisor.children.child import STUCK_NS
from tests.unit.supervisor.plan.test_diff import X, Y
from tests.unit.supervisor.reload.test_worker_swap_executor import Scene


def test_a_standby_that_does_not_end_is_waited_for_as_long_as_that_pays() -> None:
    scene = Scene({"workers_per_device": 1}, {"workers_per_device": 1})
    old = scene.workers.worker_slots[0]
    scene.stick(old)
    scene.serve()
    scene.workers.observer.idle(old)
    scene.step()
    assert old.child is not None
    old.child.kill()  # its time to end was up
    scene.later_ns = STUCK_NS - 10_000_000_000
    scene.step()
    assert (scene.swap_executor.over, scene.workers.left) == (False, [])
    scene.later_ns = STUCK_NS + 1
    scene.step()
    assert (scene.swap_executor.over, scene.workers.left) == (True, [1])
    assert scene.swap_executor.given_up == [
        "standby of worker 0 of a (pid 1) does not end although it was killed"
    ]
    assert (scene.workers.pids(), scene.swap_executor.swap.failure) == ([2], "")


def test_a_worker_that_is_stuck_in_a_batch_is_replaced_and_left_behind() -> None:
    """It never says that it is idle."""
    scene = Scene({"workers_per_device": 1}, {"workers_per_device": 1})
    scene.stick(scene.workers.worker_slots[0]).terminate("was stuck in a batch")
    scene.later_ns = STUCK_NS + 1
    scene.step()
    assert scene.workers.left == [], "until there is another"
    scene.serve()
    scene.step()
    assert (scene.swap_executor.over, scene.workers.left, scene.workers.pids()) == (True, [1], [2])


def test_an_heir_that_does_not_end_while_it_loads_is_undone() -> None:
    scene = Scene({"workers_per_device": 1}, {"workers_per_device": 1})
    scene.stick(scene.heir()).terminate("did not load within 600 s")
    scene.step()
    assert scene.swap_executor.swap.failure == ""
    scene.later_ns = STUCK_NS + 1
    scene.step()
    assert (scene.swap_executor.over, scene.workers.left, scene.workers.pids()) == (True, [2], [1])
    why = "worker 0 of a does not end although it was killed"
    assert (scene.swap_executor.swap.failure, scene.commits) == (why, 0)


def test_a_predecessor_that_does_not_end_holds_up_nobody() -> None:
    moved = {"a": ModelSpec("a", "numpy", (X,), (X, Y))}
    scene = Scene({"workers_per_device": 1}, {"workers_per_device": 1, "specs": moved})
    old = scene.workers.worker_slots[0]
    scene.stick(old).terminate("was stuck in a batch")
    scene.serve()
    scene.step()
    assert scene.commits == 1
    assert not scene.swap_executor.over, "its clients have rows there"
    scene.later_ns = STUCK_NS + 1
    scene.step()
    assert (scene.swap_executor.over, scene.workers.left) == (True, [1])
