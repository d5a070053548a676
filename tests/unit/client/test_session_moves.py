"""A session's view of a reload: facts when they have changed, lanes that are sent, and what it
says of those that it leaves."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from batchpool.client.aio_driver import LoopDriver
from batchpool.client.call import Call
from batchpool.client.infer import run_blocking
from batchpool.client.lane_client import LaneClient
from batchpool.client.loop import ClientLoop
from batchpool.client.process_id import this_process
from batchpool.client.reaper import Reaper
from batchpool.client.sync_driver import ThreadDriver
from batchpool.control.messages import Facts, LaneForm, LaneOpened
from batchpool.core.errors import InternalError, NotFound, NotReady
from batchpool.core.layout.segments import lane_layout
from batchpool.core.layout.states import LaneGate
from batchpool.core.tensors.rows import check_rows
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.shm.lane import Lane
from batchpool.shm.segment import create, map_checked
from batchpool.supervisor.resources.catalog import model_form
from tests.unit.control.packets import receive_form
from tests.unit.frontend.pool_double import SessionDouble
from tests.unit.supervisor.plan.test_diff import plan

OTHER = ModelSpec("a", "numpy", (Tensor("x", "float32", (9,)),), (Tensor("y", "float32"),))


def opened(lane: LaneForm, model: Any) -> LaneOpened:
    """The reply to the question for this lane."""
    return LaneOpened(lane.serial, lane.model, lane.slots, lane.digest, model_form(model))


class Talk:
    """A session, and what the pool says to it."""

    def __init__(self) -> None:
        self.session = SessionDouble(1, lambda: None, {})
        self.theirs = self.session.theirs
        self.theirs.sock.setblocking(False)
        self.old = plan("a", "b").models
        self.new = plan("a", specs={"a": OTHER}).models
        self.learn(0, self.old)

    def facts(self, edition: int, models: Any) -> Facts:
        return Facts(tuple(map(model_form, models)), self.session.server, edition)

    def learn(self, edition: int, models: Any) -> None:
        self.session.learn(self.facts(edition, models))

    def change(self, edition: int) -> None:
        state_page = self.session.state_page
        state_page.edition.set(edition)

    def lane(self, spec: ModelSpec, serial: int = 5) -> tuple[LaneForm, int, Lane]:
        """(its form, its segment, the batcher's view of it)."""
        layout = lane_layout(spec, 4)
        fd = create(layout, sealed=True)
        view = Lane(spec, map_checked(fd, layout), layout)
        view.gate.set(int(LaneGate.OPEN))
        return LaneForm(serial, 0, 4, layout.digest), fd, view

    def asked(self) -> list[dict[str, Any]]:
        """Messages that the pool got."""
        found = []
        while True:
            try:
                found.append(receive_form(self.theirs)[0])
            except BlockingIOError:
                return found


def test_a_lane_that_cannot_be_mapped_ends_the_session(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool counts on it that we have it, and would give us no other."""

    def full(fd: int, layout: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    form, fd, _ = talk.lane(talk.old[0].spec)
    talk.theirs.send(opened(form, talk.old[0]), [fd])
    os.close(fd)
    monkeypatch.setattr("batchpool.client.session.map_checked", full)
    with pytest.raises(NotReady, match="the lane cannot be mapped here: too many open files: this"):
        talk.session.new_lane_client("a")
    assert talk.session.is_over()


@pytest.fixture
def talk() -> Iterator[Talk]:
    talk = Talk()
    yield talk
    talk.session.close()


def test_facts_are_asked_for_when_the_state_page_says_that_they_have_changed(talk: Talk) -> None:
    talk.session.refresh()
    assert talk.asked() == []
    talk.change(1)
    talk.theirs.send(talk.facts(1, talk.new))
    talk.session.refresh()
    talk.session.refresh()
    assert talk.asked() == [{"op": "facts"}]
    assert list(talk.session.models) == ["a"], "b is no more"
    with pytest.raises(NotFound, match="there is no model 'b'; the pool has 'a'"):
        talk.session.new_lane_client("b")
    assert talk.asked() == [], "nobody needs to be asked"


def test_a_lane_is_mapped_as_the_facts_with_it_say(talk: Talk) -> None:
    """The model changed between the two questions."""
    form, fd, _ = talk.lane(OTHER)
    talk.theirs.send(opened(form, talk.new[0]), [fd])
    os.close(fd)
    lane_client = talk.session.open_lane_client("a")
    assert (lane_client.spec, lane_client.serial) == (OTHER, 5)
    assert talk.session.facts("a").spec == OTHER
    assert talk.session.open_lane_client("a") is lane_client


def test_a_lane_that_is_sent_takes_the_place_of_the_one_before(talk: Talk) -> None:
    form, fd, view = talk.lane(talk.old[0].spec, 3)
    talk.session.take_lanes([form], [fd])
    old = talk.session.lane_set["a"]
    talk.learn(1, talk.new)
    form, fd, _ = talk.lane(OTHER, 8)
    talk.session.take_lanes([form], [fd])
    new = talk.session.lane_set["a"]
    assert (new.spec, talk.session.lane_set.driven) == (OTHER, [old, new])
    talk.session.let_go()
    assert talk.asked() == [], "it may still be needed"
    view.gate.set(int(LaneGate.MOVED))
    view.generation.set(1)
    assert old.reap(0) == []
    talk.session.let_go()
    talk.session.let_go()
    assert talk.asked() == [{"op": "left", "serial": 3}]
    assert talk.session.lane_set.driven == [new]


def test_a_lane_of_another_layout_is_not_mapped(talk: Talk) -> None:
    form, fd, _ = talk.lane(OTHER)
    with pytest.raises(InternalError, match="a lane of another layout"):
        talk.session.take_lanes([form], [fd])
    assert dict(talk.session.lane_set) == {}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_pool_that_has_gone_need_not_be_told(talk: Talk) -> None:
    form, fd, view = talk.lane(talk.old[0].spec)
    talk.session.take_lanes([form], [fd])
    view.gate.set(int(LaneGate.MOVED))
    view.generation.set(1)
    talk.session.lane_set["a"].reap(0)
    talk.theirs.close()
    talk.session.let_go()
    assert talk.session.lane_set.driven == []


class Idle(ThreadDriver):
    """A client of this session that has had nothing to do since its lane was mapped."""

    def __init__(self, talk: Talk) -> None:
        self._timeout_s, self._pid = 10.0, this_process()
        self.reaper = Reaper()
        self._lock = self.reaper.changed
        self.reaper.begin(talk.session)


async def _async_lane_client(talk: Talk) -> LaneClient:
    driver = LoopDriver("", 10.0, pinned=False)
    driver.client_loop = ClientLoop(talk.session)
    lane_client = await driver.lane_client("a")
    await driver.close()
    return lane_client


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_idle_client_finds_the_new_lane_before_it_checks_a_call(talk: Talk, kind: str) -> None:
    """Else what is right for the new tensors would be wrong for the old ones, for ever."""
    form, fd, view = talk.lane(talk.old[0].spec, 3)
    talk.session.take_lanes([form], [fd])
    view.gate.set(int(LaneGate.MOVED))
    view.generation.set(1)
    talk.change(1)
    talk.learn(1, talk.new)
    form, fd, _ = talk.lane(OTHER, 8)
    talk.theirs.send(opened(form, talk.new[0]), [fd])
    os.close(fd)
    lane_client = (
        Idle(talk).open_lane_client("a")
        if kind == "sync"
        else asyncio.run(_async_lane_client(talk))
    )
    assert (lane_client.spec, lane_client.serial) == (OTHER, 8)


def test_who_waits_for_room_waits_no_longer_when_there_is_another_lane(talk: Talk) -> None:
    """Requests in the old one may take as long as their deadlines allow."""
    form, fd, view = talk.lane(talk.old[0].spec, 3)
    talk.session.take_lanes([form], [fd])
    lane_client, client = talk.session.lane_set["a"], Idle(talk)
    rows = check_rows(lane_client.spec, {"x": np.zeros((1, 4), np.float32)}, None)
    now_ns = time.monotonic_ns()
    call = Call({"x": np.zeros((1, 4), np.float32)}, timeout_s=5.0)
    call.check(lane_client, talk.session.facts("a"))
    while lane_client.may_claim(1):
        lane_client.submit(rows, now_ns, call.deadline_ns)
    view.gate.set(int(LaneGate.MOVED))
    view.generation.set(1)
    run_blocking(client.wait_for_room(lane_client, rows, call))
    assert lane_client.has_moved
    assert not lane_client.may_claim(1)
