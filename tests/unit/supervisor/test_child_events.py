"""The last words of a child are heard, although its end is noticed at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchpool.control.channel import Channel, pair
from batchpool.control.process_messages import WorkerFailed
from batchpool.supervisor.child_events import ChildEvents
from batchpool.supervisor.children.child import Child, ProcessSlot
from batchpool.supervisor.children.roles import WORKER
from tests.unit.supervisor.children.watchdog_scene import ProcessDouble

PIDFD = 1 << 20


class Scene:
    """A worker that has said why it fails and has ended, before the loop looked at either.

    ended_with: the cause that was known when the end was acted on.
    """

    def __init__(self) -> None:
        self.callbacks: dict[int, Any] = {}
        self.ended_with: list[str] = []
        loop = SimpleNamespace(
            add=self.callbacks.__setitem__, remove=lambda fd: self.callbacks.pop(fd, None)
        )
        workers = SimpleNamespace(says=self._says)
        fleet = SimpleNamespace(workers=workers, on_gone=self._on_gone)
        nothing = cast(Any, SimpleNamespace())
        self.events = ChildEvents(
            cast(Any, loop), cast(Any, fleet), nothing, nothing, nothing
        )  # fmt: skip
        ours, theirs = pair()
        self.theirs: Channel = theirs
        process = cast(Any, ProcessDouble(7))
        self.child = Child(WORKER, ProcessSlot("worker 0 of a"), process, ours, PIDFD, 0)
        self.events.watch(self.child)
        theirs.send(WorkerFailed("the weights are gone"))
        theirs.close()
        process.returncode = 1

    def _says(self, child: Child, message: WorkerFailed) -> None:
        child.cause = message.error

    def _on_gone(self, child: Child) -> None:
        self.ended_with.append(child.reason())
        self.events.unwatch(child)


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.child.channel.close()


@pytest.mark.parametrize("first", ["the end", "the words"])
def test_the_last_words_of_a_worker_are_the_reason_of_its_end(scene: Scene, first: str) -> None:
    """The order in which one poll gives the two descriptors is any."""
    callbacks = [scene.callbacks[PIDFD], scene.callbacks[scene.child.channel.fileno()]]
    for callback in callbacks if first == "the end" else reversed(callbacks):
        callback()
    assert scene.ended_with == ["the weights are gone"]


def test_an_end_that_is_not_one_yet_is_not_acted_on(scene: Scene) -> None:
    cast(Any, scene.child.process).returncode = None
    scene.callbacks[PIDFD]()
    assert scene.ended_with == []
