"""Reloads one after another: what one leaves behind holds up none of those that come after."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchpool.control.channel import Channel, pair
from batchpool.control.process_messages import DiscoveryFailed
from batchpool.supervisor.children.child import STUCK_NS, Child, ProcessSlot
from batchpool.supervisor.children.roles import Role
from batchpool.supervisor.reload import controller as module
from batchpool.supervisor.reload.controller import ReloadController
from tests.unit.supervisor.children.watchdog_scene import ProcessDouble
from tests.unit.supervisor.plan.test_diff import plan


class ControllerScene:
    """Reloads of a pool that serves, and discoveries without processes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.later_ns = 0
        self.told: list[tuple[bool, str]] = []
        self.discoveries: list[Child] = []
        self._theirs: list[Channel] = []
        process_fleet = SimpleNamespace(was_ready=True, stopping=False, flags=lambda server: [])
        resources = SimpleNamespace(
            plan=plan("a"), metrics=SimpleNamespace(reloaded=lambda done, now_ns: None)
        )
        service_status = SimpleNamespace(
            reloading=lambda now_ns: None, reloaded=lambda: None, refresh=lambda: None
        )
        self.controller = ReloadController(
            cast(Any, resources), cast(Any, process_fleet), cast(Any, service_status), ["serve"],
            lambda child: None, list, lambda: time.monotonic_ns() + self.later_ns,
        )  # fmt: skip
        patch.setattr(module, "start_child", self._start)

    def _start(self, role: Role, slot: ProcessSlot, **_: Any) -> Child:
        ours, theirs = pair()
        self._theirs.append(theirs)
        child = Child(role, slot, cast(Any, ProcessDouble(7)), ours, -1, 0)
        self.discoveries.append(child)
        return child

    def ask(self) -> None:
        self.controller.request(lambda done, text: self.told.append((done, text)))
        self.controller.tick()

    def close(self) -> None:
        for end in self._theirs:
            end.close()
        for child in self.discoveries:
            child.close()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[ControllerScene]:
    scene = ControllerScene(monkeypatch)
    yield scene
    scene.close()


def test_a_survey_that_does_not_end_is_given_up_and_the_next_reload_begins(
    scene: ControllerScene,
) -> None:
    scene.ask()
    scene.controller.cancel()
    scene.ask()
    assert len(scene.discoveries) == 1, "it may end yet"
    scene.later_ns = STUCK_NS + 1
    scene.controller.tick()
    assert scene.told == [
        (False, "nothing was changed: the process that reads the configuration was cancelled and"
         " does not end although it was killed"),
    ]  # fmt: skip
    first, second = scene.discoveries
    assert scene.controller.discovery is second
    scene.controller.discovery_ended(first)  # at last
    assert (scene.controller.discovery, len(scene.told)) == (second, 1)


def test_what_is_cancelled_when_the_survey_has_spoken_is_not_carried_out(
    scene: ControllerScene,
) -> None:
    scene.ask()
    scene.controller.discovered(DiscoveryFailed("nothing"))
    assert scene.controller.cancel() == "cancelled: nothing was changed"
    scene.controller.discovery_ended(scene.discoveries[0])
    assert scene.told == [
        (False, "nothing was changed: the process that reads the configuration was cancelled")
    ]


class Done:
    """A swap that is over and gave up a worker."""

    over = True
    given_up = ("standby of worker 0 of a (pid 7) does not end although it was killed",)
    swap = SimpleNamespace(failure="", rolled_out=True)

    def step(self) -> None:
        pass


class Remains:
    """A lane migration that waits for a worker which does not end."""

    over, failure, waits_for_stuck = False, "", True
    steps = 0

    def step(self) -> None:
        self.steps += 1

    settle = step


def test_a_reload_is_told_of_whom_it_left_behind_and_the_next_one_begins(
    scene: ControllerScene,
) -> None:
    lane_migration, reloading = Remains(), cast(Any, scene.controller)
    reloading._process_fleet.plan_settled = lambda: None
    reloading._swap_executor, reloading._lane_migration, reloading._reported = (
        Done(),
        lane_migration,
        False,
    )
    reloading._callbacks = [lambda done, text: scene.told.append((done, text))]
    reloading.tick()
    ((done, text),) = scene.told
    assert done
    assert text.endswith(
        "; but standby of worker 0 of a (pid 7) does not end although it was killed"
    )
    assert not reloading.busy
    steps = lane_migration.steps
    scene.ask()
    assert (len(scene.discoveries), lane_migration.steps) == (1, steps + 1), (
        "what it kept is looked after"
    )
    lane_migration.over = True
    reloading.tick()
    reloading.tick()
    assert lane_migration.steps == steps + 2, "until nothing is left"
