"""Clients attach, operators reload and drain, and a client that goes leaves nothing behind."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchpool.control.channel import close_all, pair
from batchpool.control.peer import Peer
from batchpool.core.errors import InvalidRequest, StartError
from batchpool.core.layout.segments import VERSION
from batchpool.supervisor import control_server
from batchpool.supervisor.client_places import CONNECTIONS_MOST
from batchpool.supervisor.control_server import ControlServer, attached_frontend
from batchpool.supervisor.resources.client_connection import ClientConnection
from batchpool.supervisor.resources.held_bells import HeldBells
from batchpool.supervisor.resources.lane_table import LaneEntry, LaneTable
from tests.unit.control.packets import receive_form, send_form
from tests.unit.supervisor.plan.test_diff import plan

STRANGER = 77777  # neither root nor the user of these tests


class Operator:
    """Notes what is asked of the pool. told: the callbacks of reloads that are waited for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.told: list[Callable[[bool, str], None]] = []

    def reload(self, told: Callable[[bool, str], None] | None) -> None:
        self.asked.append("reload")
        if told is not None:
            self.told.append(told)

    def cancel_reload(self) -> str:
        self.asked.append("cancel")
        raise InvalidRequest("no reload is under way")

    def drain(self, on: bool | None) -> tuple[bool, bool, int]:
        self.asked.append(on)
        return True, False, 3


class Desk:
    """A control server of a pool for four local clients, and one client of each kind."""

    def __init__(self) -> None:
        self.operator = Operator()
        self.lanes = LaneTable(4)
        self.retired: list[LaneEntry] = []
        self.bell_fd, self.page_fd = os.eventfd(0), os.eventfd(0)
        resources = self.resources = SimpleNamespace(
            plan=plan("a", "b", server={"max_clients": 4}),
            state_page=SimpleNamespace(edition=SimpleNamespace(get=lambda: 7)),
            state_page_read_fd=self.page_fd,
            batcher_bell=SimpleNamespace(fd=self.bell_fd),
            lanes=self.lanes,
        )
        fleet = SimpleNamespace(
            tasks=SimpleNamespace(child=None),
            retire_lane=self.retired.append,
            entries=resources.plan.entries,
            open_lane=lambda who, model, handed: self.add_lane(who, model.entry),
        )
        self.server = ControlServer(*cast(Any, (resources, fleet, dict, self.operator)))
        self.theirs: dict[str, Any] = {}
        self.clients: list[ClientConnection] = []

    def local(self, name: str, uid: int | None = None) -> ClientConnection:
        ours, self.theirs[name] = pair()
        ours.sock.setblocking(False)
        self.theirs[name].sock.setblocking(False)
        peer = Peer(1, os.geteuid() if uid is None else uid, 1)
        client = ClientConnection(name, ours, peer, -1, number=len(self.theirs))
        self.server.local.append(client)
        self.clients.append(client)
        return client

    def frontend(self) -> ClientConnection:
        ours, self.theirs["frontend"] = pair()
        ours.sock.setblocking(False)
        self.clients.append(attached_frontend("frontend", ours, 0))
        return self.clients[-1]

    def ask(self, who: ClientConnection, op: str, **facts: Any) -> tuple[dict[str, Any], list[int]]:
        send_form(self.theirs[who.owner], {"op": op, **facts})
        assert self.server.hear(who)
        return receive_form(self.theirs[who.owner])

    def attach(self, who: ClientConnection, **facts: Any) -> dict[str, Any]:
        answer, fds = self.ask(who, "attach", version=VERSION, **facts)
        close_all(fds)
        return answer

    def add_lane(self, who: ClientConnection, model: int = 0) -> LaneEntry:
        assert who.bells is not None
        layout = plan("a").models[0].client_lane
        return self.lanes.add(model, who.owner, layout, who.bells, client=who.number, pinned=False)

    def close(self) -> None:
        for entry in self.lanes:
            self.lanes.remove(entry.number)
        for client in self.clients:
            client.close()
            client.channel.close()
        for channel in self.theirs.values():
            channel.close()
        close_all([self.bell_fd, self.page_fd])


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


def rings(ringer: int, listener: int) -> bool:
    """True if what one descriptor rings is heard by the other."""
    os.eventfd_write(ringer, 1)
    return os.eventfd_read(listener) == 1


def test_a_local_client_gets_the_state_page_and_two_bells_of_its_own(desk: Desk) -> None:
    client = desk.local("ann")
    answer, (page, rung, heard) = desk.ask(client, "attach", version=VERSION, pinned=True)
    try:
        assert (answer["op"], answer["edition"]) == ("attached", 7)
        assert [form["entry"] for form in answer["models"]] == [0, 1]
        assert rings(desk.page_fd, page)
        assert client.bells is not None
        assert rings(rung, client.bells.from_client)
        assert (client.bells.for_client, client.attached, client.pinned) == (-1, True, True)
    finally:
        close_all([page, rung, heard])


def test_a_front_end_rings_the_batchers_own_bell(desk: Desk) -> None:
    frontend = desk.frontend()
    _, (page, rung, heard) = desk.ask(frontend, "attach", version=VERSION)
    try:
        assert rings(desk.page_fd, page)
        assert rings(rung, desk.bell_fd)
        assert frontend.bells is not None
        assert rings(frontend.bells.to_client, heard)
        assert frontend.pinned, "the lanes of a front end always are"
    finally:
        close_all([page, rung, heard])


def test_a_client_is_not_pinned_unless_it_asks(desk: Desk) -> None:
    client = desk.local("ann")
    desk.attach(client)
    assert not client.pinned


def test_another_version_is_told_both(desk: Desk) -> None:
    client = desk.local("ann")
    answer, fds = desk.ask(client, "attach", version=VERSION + 1)
    assert (answer["code"], fds, client.attached) == ("invalid_request", [], False)
    assert f"version {VERSION + 1}, the pool {VERSION};" in answer["error"]


def test_attach_comes_once_and_before_any_lane(desk: Desk) -> None:
    client = desk.local("ann")
    assert desk.ask(client, "lane", model="a")[0]["error"] == "attach before asking for a lane"
    assert desk.attach(client)["op"] == "attached"
    assert desk.attach(client)["error"] == "attach comes once; this client is attached"


def test_only_attached_clients_fill_the_places(desk: Desk) -> None:
    for number in range(4):
        desk.local(f"only asks {number}")
        assert desk.attach(desk.local(f"client {number}"))["op"] == "attached"
    answer = desk.attach(desk.local("one too many"))
    assert (answer["code"], answer["error"]) == (
        "overloaded", "4 local clients are attached, max_clients = 4",
    )  # fmt: skip
    assert desk.attach(desk.frontend())["op"] == "attached", "it needs no place"


def test_attached_clients_take_no_place_of_those_that_only_ask(desk: Desk, tmp_path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    listening.bind(str(tmp_path / "s"))
    listening.listen()
    desk.resources.control = SimpleNamespace(sock=listening)
    for number in range(CONNECTIONS_MOST):
        desk.local(f"client {number}").bells = HeldBells.of_frontend()
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    caller.connect(str(tmp_path / "s"))
    taken = desk.server.accept()
    assert taken is not None
    assert taken.number == 1
    desk.clients.append(taken)
    caller.close()
    listening.close()


def test_a_lane_that_the_client_does_not_know_yet_cannot_be_left(desk: Desk) -> None:
    client = desk.local("ann")
    desk.attach(client)
    lane = desk.add_lane(client)
    lane.moved, lane.handed = True, False
    send_form(desk.theirs["ann"], {"op": "left", "serial": lane.serial})
    assert desk.server.hear(client)
    assert not lane.left
    lane.handed = True
    send_form(desk.theirs["ann"], {"op": "left", "serial": lane.serial})
    assert desk.server.hear(client)
    assert lane.left


def test_an_operator_who_does_not_wait_is_answered_at_once(desk: Desk) -> None:
    operator = desk.local("ann")
    assert desk.ask(operator, "reload")[0] == {"op": "reload", "done": True, "text": "asked for"}
    assert (desk.operator.asked, desk.operator.told, operator.waits) == (["reload"], [], False)


def test_an_operator_who_waits_is_told_the_end_of_the_reload(desk: Desk) -> None:
    operator = desk.local("ann")
    send_form(desk.theirs["ann"], {"op": "reload", "wait": True})
    assert desk.server.hear(operator)
    with pytest.raises(BlockingIOError):
        receive_form(desk.theirs["ann"])
    assert operator.waits, "it may be silent for long"
    (told,) = desk.operator.told
    before_ns = time.monotonic_ns()
    told(False, "undone")
    assert receive_form(desk.theirs["ann"])[0] == {"op": "reload", "done": False, "text": "undone"}
    assert not operator.waits
    assert operator.heard_ns >= before_ns, "it is not dropped for the time that it waited"


def test_a_reload_that_cannot_be_cancelled_is_a_refusal(desk: Desk) -> None:
    answer, _ = desk.ask(desk.local("ann"), "reload", cancel=True)
    assert (answer["error"], desk.operator.asked) == ("no reload is under way", ["cancel"])


@pytest.mark.parametrize("on", [True, False, None])
def test_a_drain_is_answered_with_how_far_it_is(desk: Desk, on: bool | None) -> None:
    answer, _ = desk.ask(desk.local("ann"), "drain", on=on)
    assert answer == {"op": "drain", "draining": True, "answered": False, "rows": 3}
    assert desk.operator.asked == [on]


@pytest.mark.parametrize("op", ["reload", "drain"])
@pytest.mark.parametrize("who", ["a stranger", "a front end"])
def test_nobody_else_may_operate_the_pool(desk: Desk, op: str, who: str) -> None:
    asker = desk.local("bob", STRANGER) if who == "a stranger" else desk.frontend()
    answer, _ = desk.ask(asker, op)
    assert (answer["code"], desk.operator.asked) == ("invalid_request", [])
    assert f"you may not {op} this pool" in answer["error"]


def test_root_may_operate_every_pool(desk: Desk) -> None:
    assert desk.ask(desk.local("root", 0), "drain")[0]["op"] == "drain"


def test_a_client_that_has_gone_is_heard_no_more(desk: Desk) -> None:
    client = desk.local("ann")
    assert desk.server.hear(client), "it says nothing"
    desk.theirs["ann"].close()
    assert not desk.server.hear(client)


def test_a_client_that_goes_before_its_answer_is_heard_no_more(desk: Desk) -> None:
    client = desk.local("ann")
    send_form(desk.theirs["ann"], {"op": "drain"})
    desk.theirs["ann"].close()
    assert not desk.server.hear(client)


def test_a_client_that_goes_leaves_no_lane_and_no_place(desk: Desk) -> None:
    client, other = desk.local("ann"), desk.local("bob")
    for each in (client, other):
        desk.attach(each)
        desk.add_lane(each)
    own = desk.lanes.of_owner("ann")
    bells = cast(HeldBells, client.bells)
    desk.server.drop(client)
    assert (desk.retired, desk.server.local) == (own, [other])
    assert client.bells is None
    os.eventfd_write(bells.to_client, 1)  # the lane has a share of them still
    with pytest.raises(OSError, match="Bad file descriptor"):
        client.channel.sock.send(b"x")


def test_a_broken_lane_is_named_with_its_process(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    client = desk.local("client 1 of uid 5 (pid 6)")
    desk.attach(client)
    entry = desk.add_lane(client)
    desk.server.lane_broken(entry.number, "a head too far")
    assert caplog.messages == [
        "the lane of client 1 of uid 5 (pid 6) to model 'a' is closed as broken: a head too far"
    ]
    caplog.clear()
    desk.server.lane_broken(3, "it is gone already")
    assert caplog.messages == []


def test_the_same_shortage_is_logged_once_until_a_lane_was_opened(
    desk: Desk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(what: str, share: float = 1.0) -> None:
        raise StartError(f"{what}: too many open files")

    clients = desk.local("ann"), desk.local("bob")
    desk.attach(clients[0])
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(control_server, "check_descriptors", short)
            for _ in range(3):
                assert desk.attach(clients[1])["code"] == "internal"
        assert caplog.messages == [
            "bob is refused: the pool can take no more clients: too many open files"
        ]
        caplog.clear()
        _, fds = desk.ask(clients[0], "lane", model="ab"[len(list(desk.lanes))])
        close_all(fds)
