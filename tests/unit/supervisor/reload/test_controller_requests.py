"""Reloads begin one at a time, and everybody who asked is told of the end."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchpool.control.channel import Channel, pair
from batchpool.control.process_messages import ConfigurationRead, Discovered, DiscoveryFailed
from batchpool.core.config.schema import Config
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import InvalidRequest, StartError
from batchpool.supervisor.children.child import Child, ProcessSlot
from batchpool.supervisor.children.roles import Role
from batchpool.supervisor.host.socket_activation import ActivatedSockets
from batchpool.supervisor.plan.discover import configuration_read
from batchpool.supervisor.reload import controller as module
from batchpool.supervisor.reload.controller import ReloadController
from batchpool.supervisor.reload.worker_swap import SwapPhase
from tests.unit.supervisor.children.watchdog_scene import ProcessDouble
from tests.unit.supervisor.plan.test_diff import plan

S = 1_000_000_000
SOCKET = "/run/pool.sock"


class Scene:
    """A pool that serves. told: what each caller was told. notes: of the service's status and of
    the metrics, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_ns = 100 * S
        self.told: list[tuple[str, bool, str]] = []
        self.notes: list[tuple[Any, ...]] = []
        self.started: list[Child] = []
        self.watched: list[Child] = []
        self.flags: list[str] = []
        self.room = True
        self._theirs: list[Channel] = []
        self.fleet = SimpleNamespace(was_ready=True, stopping=False)
        resources = SimpleNamespace(
            plan=plan("a", server={"log_level": "debug"}, socket=SOCKET),
            activated=ActivatedSockets(),
            metrics=SimpleNamespace(reloaded=lambda *facts: self.notes.append(("count", *facts))),
        )
        service_status = SimpleNamespace(
            reloading=lambda now_ns: self.notes.append(("reloading", now_ns)),
            reloaded=lambda: self.notes.append(("reloaded",)),
        )
        self.controller = ReloadController(
            cast(Any, resources), cast(Any, self.fleet), cast(Any, service_status),
            ["serve", "pool.toml"], self.watched.append, list, lambda: self.now_ns,
        )  # fmt: skip
        patch.setattr(module, "start_child", self._start)

    def _start(self, role: Role, slot: ProcessSlot, *, started_ns: int, flags: list[str]) -> Child:
        if not self.room:
            raise StartError("cannot start discovery: no room")
        ours, theirs = pair()
        self._theirs.append(theirs)
        self.flags = flags
        child = Child(role, slot, cast(Any, ProcessDouble(7)), ours, -1, started_ns)
        self.started.append(child)
        return child

    def request(self, who: str) -> None:
        self.controller.request(lambda done, text: self.told.append((who, done, text)))

    def end(self, *, says: str = "", status: int = 1) -> None:
        """Let the discovery end, after these words."""
        child = self.started[-1]
        if says:
            self.controller.discovered(DiscoveryFailed(says))
        cast(Any, child.process).returncode = status
        self.controller.discovery_ended(child)

    def close(self) -> None:
        for end in self._theirs:
            end.close()
        for child in self.started:
            child.close()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    scene = Scene(monkeypatch)
    yield scene
    scene.close()


def test_a_reload_begins_with_a_discovery_that_is_watched(scene: Scene) -> None:
    controller = scene.controller
    controller.tick()
    assert (controller.busy, controller.state(), scene.started) == (False, "", [])
    scene.request("ann")
    controller.tick()
    (child,) = scene.started
    assert (controller.discovery, scene.watched, child.started_ns) == (child, [child], 100 * S)
    assert scene.flags[:3] == ["--log-level", "debug", "--log-format"]
    assert scene.flags[4:] == ["--", "serve", "pool.toml"]
    assert (controller.busy, controller.state()) == (True, "reading the configuration")
    assert scene.notes == [("reloading", 100 * S)]
    controller.tick()
    assert len(scene.started) == 1


def read(**server: Any) -> ConfigurationRead:
    config = Config(ServerConfig(log_level="debug", socket=SOCKET, **server))
    return configuration_read(config)


def test_a_configuration_that_needs_a_restart_ends_the_discovery_before_it_probes(
    scene: Scene,
) -> None:
    scene.request("ann")
    scene.controller.tick()
    scene.controller.discovered(read(port=9, frontends=1))
    assert cast(Any, scene.started[-1].process).signals == [9]
    scene.end(status=-9)
    text = "nothing was changed: port changed: restart the service"
    assert scene.told == [("ann", False, text)]


def test_another_batchpool_ends_the_discovery_before_it_probes(scene: Scene) -> None:
    scene.request("ann")
    scene.controller.tick()
    scene.controller.discovered(ConfigurationRead("batchpool 99", {"unheard": 1}, 4))
    scene.end(status=-9)
    ((_, done, text),) = scene.told
    assert not done
    assert text.startswith("nothing was changed: batchpool 99 is installed now and the pool runs")


def test_a_configuration_that_the_pool_may_take_lets_the_discovery_go_on(scene: Scene) -> None:
    scene.request("ann")
    scene.controller.tick()
    scene.controller.discovered(read(frontends=1, drain_s=3))
    assert cast(Any, scene.started[-1].process).signals == []
    scene.controller.discovered(Discovered("batchpool 99", {}, (), (), (), 4))
    scene.end(status=0)
    ((_, _, text),) = scene.told
    assert text.startswith("nothing was changed: batchpool 99 is installed now")


def test_a_wrong_configuration_changes_nothing_and_is_told(scene: Scene) -> None:
    scene.request("ann")
    scene.controller.tick()
    scene.now_ns += S
    scene.end(says="pool.toml: no such key")
    text = "nothing was changed: pool.toml: no such key"
    assert scene.told == [("ann", False, text)]
    assert (scene.controller.last, scene.controller.busy) == (f"failed: {text}", False)
    assert scene.notes == [("reloading", 100 * S), ("count", False, 101 * S), ("reloaded",)]


def test_a_discovery_that_ends_without_a_word_is_told_so(scene: Scene) -> None:
    scene.request("ann")
    scene.controller.tick()
    scene.end(status=-11)
    assert scene.told == [
        ("ann", False, "nothing was changed: the process that reads the configuration was killed"
         " by SIGSEGV"),
    ]  # fmt: skip


def test_the_words_of_one_discovery_are_not_those_of_the_next(scene: Scene) -> None:
    scene.request("ann")
    scene.controller.tick()
    scene.end(says="pool.toml: no such key")
    scene.request("bob")
    scene.controller.tick()
    scene.end(status=3)
    assert scene.told[1][2].endswith("the configuration ended with exit status 3")


def test_requests_that_come_meanwhile_are_one_reload_after_it(scene: Scene) -> None:
    scene.request("ann")
    scene.controller.tick()
    scene.request("bob")
    scene.controller.request()  # a signal
    scene.request("cid")
    scene.controller.tick()
    assert len(scene.started) == 1
    scene.end(says="first")
    assert [who for who, _, _ in scene.told] == ["ann"]
    scene.controller.tick()
    scene.end(says="second")
    assert [(who, text[-6:]) for who, _, text in scene.told[1:]] == [
        ("bob", "second"), ("cid", "second"),
    ]  # fmt: skip
    scene.controller.tick()
    assert len(scene.started) == 2, "nobody asked for more"


def test_a_request_is_kept_while_the_pool_loads(scene: Scene) -> None:
    scene.fleet.was_ready = False
    scene.request("ann")
    scene.controller.tick()
    assert scene.started == []
    scene.fleet.was_ready = True
    scene.controller.tick()
    assert len(scene.started) == 1


def test_a_pool_that_stops_begins_no_reload(scene: Scene) -> None:
    scene.fleet.stopping = True
    scene.request("ann")
    scene.controller.tick()
    assert scene.started == []


def test_no_room_for_a_discovery_is_told(scene: Scene) -> None:
    scene.room = False
    scene.request("ann")
    scene.controller.tick()
    assert scene.told == [("ann", False, "nothing was changed: cannot start discovery: no room")]
    assert (scene.watched, scene.notes[0]) == ([], ("count", False, 100 * S))
    scene.room = True
    scene.request("bob")
    scene.controller.tick()
    assert len(scene.started) == 1


def test_there_is_nothing_to_cancel(scene: Scene) -> None:
    with pytest.raises(InvalidRequest, match="no reload is under way"):
        scene.controller.cancel()


def test_cancelling_kills_the_discovery(scene: Scene) -> None:
    scene.request("ann")
    scene.controller.tick()
    scene.controller.cancel()
    assert cast(Any, scene.started[0].process).signals == [9]
    scene.end(status=-9)
    assert scene.told == [
        ("ann", False,
         "nothing was changed: the process that reads the configuration was cancelled"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("phase", "said"),
    [
        (SwapPhase.ROLLING_OUT, "cancelled: the old workers serve"),
        (SwapPhase.COMMITTED, "it is too late: the new workers serve, and the old ones end"),
    ],
)
def test_new_workers_can_be_cancelled_until_they_serve(
    scene: Scene, phase: SwapPhase, said: str
) -> None:
    reasons: list[str] = []
    swap = SimpleNamespace(phase=phase, fail=reasons.append)
    reloading = cast(Any, scene.controller)
    reloading._swap_executor, reloading._reported = SimpleNamespace(swap=swap), False
    if phase is SwapPhase.COMMITTED:
        with pytest.raises(InvalidRequest, match=said):
            scene.controller.cancel()
    else:
        assert scene.controller.cancel() == said
    assert reasons == (["it was cancelled"] if phase is SwapPhase.ROLLING_OUT else [])


def test_everybody_who_waits_is_told_that_the_pool_stops(scene: Scene) -> None:
    scene.request("ann")
    scene.controller.tick()
    scene.request("bob")
    scene.fleet.stopping = True
    scene.controller.stop()
    text = "the pool is stopping"
    assert scene.told == [("ann", False, text), ("bob", False, text)]
    assert cast(Any, scene.started[0].process).signals == [9]
    scene.end(status=-9)
    scene.controller.tick()
    assert (len(scene.told), len(scene.started)) == (2, 1)


def test_a_stop_without_a_reload_tells_nobody(scene: Scene) -> None:
    scene.controller.stop()
    assert (scene.told, scene.notes, scene.controller.last) == ([], [], "")


class Migration:
    """A lane migration that is over as soon as it is undone."""

    failure, waits_for_stuck = "", False

    def __init__(self) -> None:
        self.calls: list[str] = []

    @property
    def over(self) -> bool:
        return "undo" in self.calls

    def step(self) -> None:
        self.calls.append("step")

    def undo(self) -> None:
        self.calls.append("undo")

    def settle(self) -> None:
        self.calls.append("settle")


def test_lanes_go_back_when_the_new_workers_fail(scene: Scene) -> None:
    scene.request("ann")
    reloading, migration = cast(Any, scene.controller), Migration()
    scene.fleet.plan_settled = lambda: migration.calls.append("settled")
    swap = SimpleNamespace(failure="worker 0 of a does not load", rolled_out=False)
    reloading._swap_executor = SimpleNamespace(swap=swap, step=lambda: None, over=True, given_up=())
    reloading._lane_migration, reloading._reported = migration, False
    reloading._callbacks, reloading._next = reloading._next, []
    reloading._began_ns, reloading._requested = 98 * S, False
    scene.controller.tick()
    assert migration.calls == ["step", "undo", "settled", "settle"]
    text = "undone after 2.0 s, the old workers serve: worker 0 of a does not load"
    assert scene.told == [("ann", False, text)]
    assert not scene.controller.busy


def test_a_stop_abandons_the_new_workers(scene: Scene) -> None:
    abandoned: list[str] = []
    reloading = cast(Any, scene.controller)
    reloading._swap_executor = SimpleNamespace(abandon=lambda: abandoned.append("new workers"))
    reloading._reported = False
    scene.controller.stop()
    assert (abandoned, scene.controller.last) == (["new workers"], "failed: the pool is stopping")
    assert not scene.controller.busy
