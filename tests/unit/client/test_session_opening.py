"""The beginning and the end of a session, and lanes whose gates open late or never."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from batchpool.client import session as module
from batchpool.client.session import Session
from batchpool.control.channel import Closed, pair
from batchpool.control.edges import FROM_CLIENT
from batchpool.control.messages import Attached
from batchpool.core.errors import InternalError, NotReady, PoolStopped
from batchpool.core.layout.segments import VERSION, state_page_layout
from batchpool.core.layout.states import LaneGate
from batchpool.shm.doorbell import Doorbell
from batchpool.shm.pool_state import PoolStatePage
from batchpool.shm.segment import create
from batchpool.supervisor.resources.catalog import model_form
from tests.unit.client.lane_clients import MS, NOW
from tests.unit.client.scene import Scene, is_rung
from tests.unit.client.test_session_moves import OTHER, Talk, opened
from tests.unit.control.packets import receive_form
from tests.unit.shm.scarcity import open_files
from tests.unit.supervisor.plan.test_diff import plan


def test_a_session_that_is_connected_is_open_until_it_is_closed(tmp_path: Path) -> None:
    path = str(tmp_path / "clients")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        session = Session.connect(path, attach=False)
        assert not session.closed
        assert not session.is_over()
        session.close()
        session.close()
        assert session.closed


def test_attaching_takes_the_models_the_page_and_the_bells() -> None:
    ours, theirs = pair()
    session, batchers, clients = Session(ours, "here"), Doorbell(), Doorbell()
    fd = create(state_page_layout(), sealed=False)
    page = PoolStatePage(fd, writable=True)
    models = tuple(map(model_form, plan("a", "b").models))
    theirs.send(Attached(models, {"port": 1}, 4), [fd, batchers.fd, clients.fd])
    os.close(fd)
    before = open_files()
    session.attach(pinned=True, bell=Doorbell)
    assert receive_form(theirs)[0] == {"op": "attach", "version": VERSION, "pinned": True}
    assert (list(session.models), session.server, session.edition) == (["a", "b"], {"port": 1}, 4)
    page.edition.set(9)
    assert session.state_page.edition.get() == 9
    assert not is_rung(batchers)
    session.ring()
    assert is_rung(batchers)
    clients.ring()
    assert is_rung(session.bell)
    session.close()
    del session  # the mapped page is one too
    assert open_files() == before - 2, "its end of the connection and the bell of its own"
    for end in (batchers, clients, theirs):
        end.close()


def test_a_session_that_is_forgotten_is_closed() -> None:
    ours, theirs = pair()
    session = Session(ours, "here")
    del session
    gc.collect()
    with pytest.raises(Closed):
        theirs.receive(FROM_CLIENT)
    theirs.close()


class Opening:
    """A session that asks for a lane, whose gate is closed."""

    def __init__(self) -> None:
        self.talk = Talk()
        self.session = self.talk.session
        form, fd, self.lane = self.talk.lane(self.talk.old[0].spec)
        self.lane.gate.set(int(LaneGate.CLOSED))
        self.talk.theirs.send(opened(form, self.talk.old[0]), [fd])
        os.close(fd)

    def open_gate(self) -> None:
        self.lane.gate.set(int(LaneGate.OPEN))
        self.session.batchers_end.ring()


@pytest.fixture
def talk() -> Iterator[Talk]:
    talk = Talk()
    yield talk
    talk.session.close()


@pytest.fixture
def opening(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opening]:
    monkeypatch.setattr(module, "Waiter", scene.waits.waiter)
    opening = Opening()
    yield opening
    opening.session.close()


def test_a_lane_is_waited_for_until_its_gate_opens(scene: Scene, opening: Opening) -> None:
    session = opening.session
    scene.waits.steps += [session.batchers_end.ring, opening.open_gate]
    lane_client = session.open_lane_client("a", 10.0)
    assert scene.waits.until_ns == [NOW + 100 * MS] * 2
    assert session.lane_set["a"] is lane_client
    assert not is_rung(session.bell)
    assert is_rung(session.self_bell), "the ring may have been meant for another thread"


def test_a_pool_that_does_not_answer_in_time_is_not_ready(talk: Talk) -> None:
    with pytest.raises(NotReady, match=r"did not answer within 0\.01 s"):
        talk.session.new_lane_client("a", 0.01)
    assert talk.session.is_over(), "a late reply must not be taken for that of another question"


def test_a_gate_that_stays_closed_ends_the_session(scene: Scene, opening: Opening) -> None:
    with pytest.raises(NotReady, match="did not open the lane in time"):
        opening.session.new_lane_client("a", 0.25)
    assert scene.waits.until_ns == [NOW + 100 * MS, NOW + 200 * MS, NOW + 250 * MS]
    assert opening.session.is_over()


def test_a_pool_that_goes_away_before_the_gate_opens_has_stopped(
    scene: Scene, opening: Opening
) -> None:
    scene.waits.steps.append(opening.talk.theirs.close)
    with pytest.raises(PoolStopped):
        opening.session.new_lane_client("a", 10.0)
    assert scene.clock() == NOW


def test_a_session_that_is_closed_before_the_gate_opens_has_stopped(
    scene: Scene, opening: Opening
) -> None:
    """By the loop of an AsyncClient, while a thread waits here: for descriptors that are closed."""
    scene.waits.steps.append(opening.session.close)
    with pytest.raises(PoolStopped):
        opening.session.new_lane_client("a", 10.0)
    assert len(scene.waits.until_ns) == 1


def test_a_lane_has_the_settings_of_its_model_and_asks_the_page_for_its_workers() -> None:
    talk = Talk()
    facts = talk.session.models["a"] = replace(talk.session.facts("a"), watermark=0.5)
    form, fd, view = talk.lane(facts.spec)
    talk.session.take_lanes([form], [fd])
    lane_client = talk.session.lane_set["a"]
    assert (lane_client.allocator.slots, lane_client.allocator.bound) == (4, 2)
    lane_client.check_gate(NOW)
    talk.session.state_page.accepting[facts.index] = 0
    with pytest.raises(NotReady, match="no worker serves model 'a' now"):
        lane_client.check_gate(NOW)
    view.gate.set(int(LaneGate.MOVED))
    assert not talk.session.lane_set.moving
    assert lane_client.sees_move()
    assert talk.session.lane_set.moving
    talk.session.close()
    assert (dict(talk.session.lane_set), talk.session.lane_set.driven) == ({}, [])


def test_of_lanes_that_are_sent_none_is_left_open_when_one_is_wrong() -> None:
    talk = Talk()
    sent = [talk.lane(spec) for spec in (OTHER, talk.old[0].spec)]
    before = open_files()
    with pytest.raises(InternalError, match="a lane of another layout"):
        talk.session.take_lanes([form for form, _, _ in sent], [fd for _, fd, _ in sent])
    assert open_files() == before - 2
    talk.session.close()
