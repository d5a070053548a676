"""Each message and each end of a child sets in motion what it should."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchpool.control.channel import Channel, pair
from batchpool.control.edges import FromBatcher
from batchpool.control.messages import FrontendServing, GetStatus, Message
from batchpool.control.process_messages import (
    BatcherRunning,
    ConfigurationRead,
    Discovered,
    DiscoveryFailed,
    Drained,
    LaneBroken,
    LaneClosed,
    WorkerBroken,
    WorkerHandled,
    WorkerIdle,
)
from batchpool.process.bootstrap import EXIT_GAVE_UP
from batchpool.supervisor.child_events import ChildEvents
from batchpool.supervisor.children.child import Child, ProcessSlot
from batchpool.supervisor.children.roles import BATCHER, DISCOVERY, FRONTEND, Role
from batchpool.supervisor.resources.client_connection import ClientConnection
from tests.unit.supervisor.children.watchdog_scene import ProcessDouble

PIDFD = 1 << 20

BROKEN = WorkerBroken(4, "a tail too far", useful=True)


class Scene:
    """A batcher, a front end and a discovery, all watched. calls: what was done, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.callbacks: dict[int, Any] = {}
        self.answers = True
        self._ends: dict[int, Channel] = {}
        loop = SimpleNamespace(
            add=self.callbacks.__setitem__, remove=lambda fd: self.callbacks.pop(fd, None)
        )
        self.batcher = self._child(BATCHER, "batcher", 7)
        self.frontend = self._child(FRONTEND, "frontend 0", 8)
        self.discovery = self._child(DISCOVERY, "discovery", 9)
        self.reloads = SimpleNamespace(
            discovered=self._note("discovered"),
            discovery_ended=self._note("discovery ended"),
            discovery=self.discovery,
        )
        fleet = SimpleNamespace(
            workers=SimpleNamespace(
                idle=self._note("idle"), handled=self._note("handled"), broken=self._note("broken")
            ),
            frontends=SimpleNamespace(
                children=[None, self.frontend],
                owner_of=lambda child: f"owner {child.pid}",
                send_plan=self._note("plan"),
            ),
            lane_closed=self._note("lane closed"),
            on_gone=self._note("gone"),
            everybody=lambda: [self.batcher, self.frontend],
        )
        control_server = SimpleNamespace(
            handle=self._handle, drop=self._note("dropped"), lane_broken=self._note("lane broken")
        )
        drain = SimpleNamespace(batcher_reported=self._note("drain"))
        self.events = ChildEvents(*cast(Any, (loop, fleet, control_server, self.reloads, drain)))
        for child in (self.batcher, self.frontend, self.discovery):
            self.events.watch(child)

    def _child(self, role: Role, name: str, pid: int) -> Child:
        ours, theirs = pair()
        ours.sock.setblocking(False)
        self._ends[pid] = theirs
        process = cast(Any, ProcessDouble(pid))
        return Child(role, ProcessSlot(name), process, ours, PIDFD + pid, 0)

    def _note(self, what: str) -> Any:
        return lambda *facts: self.calls.append((what, *facts))

    def _handle(self, who: ClientConnection, message: Message, fds: list[int]) -> bool:
        self.calls.append(("asked", who.owner, who.frontend, message))
        return self.answers

    def say(self, child: Child, message: Message) -> list[tuple[Any, ...]]:
        """Let a child say this; what was done then."""
        self.calls.clear()
        self._ends[child.pid].send(message)
        self.callbacks[child.channel.fileno()]()
        return self.calls

    def end(self, child: Child, status: int = 1) -> list[tuple[Any, ...]]:
        """Let a child end, and the loop notice it; what was done then."""
        self.calls.clear()
        cast(Any, child.process).returncode = status
        self.callbacks[child.pidfd]()
        return self.calls

    def signals(self, child: Child) -> list[int]:
        return cast(list[int], cast(Any, child.process).signals)

    def close(self) -> None:
        for end in self._ends.values():
            end.close()
        for child in (self.batcher, self.frontend, self.discovery):
            child.channel.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.close()


@pytest.mark.parametrize(
    ("message", "done"),
    [
        (LaneClosed(3), ("lane closed", 3)),
        (LaneBroken(3, "a head too far"), ("lane broken", 3, "a head too far")),
        (WorkerIdle(4, 5), ("idle", 4, 5)),
        (BROKEN, ("broken", BROKEN)),
        (WorkerHandled(4), ("handled", 4)),
        (Drained(2, True), ("drain", 2, True)),
        (Drained(2, False), ("drain", 2, False)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_message_of_the_batcher_reaches_whoever_acts_on_it(
    scene: Scene, message: FromBatcher, done: tuple[Any, ...]
) -> None:
    assert scene.say(scene.batcher, message) == [done]


def test_a_batcher_that_runs_is_said_to_run(scene: Scene) -> None:
    assert scene.batcher.state == "starting"
    assert scene.say(scene.batcher, BatcherRunning()) == []
    assert scene.batcher.state == "running"


def test_a_front_end_that_serves_is_sent_the_plan_of_now(scene: Scene) -> None:
    """The plan may have changed since it asked for the models."""
    assert scene.say(scene.frontend, FrontendServing()) == [("plan", scene.frontend)]
    assert scene.frontend.state == "serving"


def test_a_front_end_asks_as_the_client_that_it_is(scene: Scene) -> None:
    assert scene.say(scene.frontend, GetStatus()) == [("asked", "owner 8", 1, GetStatus())]
    assert scene.signals(scene.frontend) == []


def test_a_front_end_that_cannot_be_answered_is_replaced(scene: Scene) -> None:
    scene.answers = False
    scene.say(scene.frontend, GetStatus())
    assert (scene.signals(scene.frontend), scene.frontend.cause) == (
        [9], "could not be answered",
    )  # fmt: skip


def test_a_child_that_cannot_be_understood_is_replaced(scene: Scene) -> None:
    scene.say(scene.batcher, GetStatus())
    assert scene.signals(scene.batcher) == [9]
    assert scene.batcher.cause.startswith("could not be understood: ")


@pytest.mark.parametrize(
    "message",
    [
        ConfigurationRead("v", {}, 1),
        DiscoveryFailed("no such file"),
        Discovered("v", {}, (), (), (), 1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_a_discovery_found_goes_to_the_reload(scene: Scene, message: Any) -> None:
    assert scene.say(scene.discovery, message) == [("discovered", message)]


def test_a_front_ends_lanes_go_with_it(scene: Scene) -> None:
    client = scene.events.frontends[8]
    assert scene.end(scene.frontend) == [("dropped", client), ("gone", scene.frontend)]
    assert (scene.events.frontends, scene.events.requests_given_up) == ({}, False)


def test_requests_that_a_front_end_gave_up_are_remembered(scene: Scene) -> None:
    scene.end(scene.frontend, EXIT_GAVE_UP)
    assert scene.events.requests_given_up


def test_that_status_means_nothing_of_another_process(scene: Scene) -> None:
    assert scene.end(scene.batcher, EXIT_GAVE_UP) == [("gone", scene.batcher)]
    assert not scene.events.requests_given_up


def test_where_there_are_no_pidfds_ends_are_polled(scene: Scene) -> None:
    batcher, frontend, discovery = scene.batcher, scene.frontend, scene.discovery
    batcher.pidfd = discovery.pidfd = -1
    scene.events.poll_ends()
    assert scene.calls == [], "nobody has ended"
    for child in (batcher, frontend, discovery):
        cast(Any, child.process).returncode = 0
    fd = discovery.channel.fileno()
    scene.events.poll_ends()
    assert scene.calls == [("gone", batcher), ("discovery ended", discovery)]
    assert (discovery.closed, fd in scene.callbacks) == (True, False)


def test_a_channel_that_was_closed_is_looked_at_no_more(scene: Scene) -> None:
    """It stays readable, and the loop would turn without end."""
    fd = scene.batcher.channel.fileno()
    scene._ends[7].close()
    scene.callbacks[fd]()
    assert fd not in scene.callbacks
    assert scene.batcher.pidfd in scene.callbacks, "its end is still to come"


def test_who_is_not_watched_any_more_has_no_descriptor_in_the_loop(scene: Scene) -> None:
    batcher = scene.batcher
    scene.events.unwatch(batcher)
    assert not {batcher.pidfd, batcher.channel.fileno()} & set(scene.callbacks)
