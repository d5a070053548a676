"""Questions at the desk that are answered at once: status, facts, lanes, the flight recorder."""

from __future__ import annotations

import errno
import os
import re
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchpool.client.session import Session
from batchpool.control.channel import MAX_MESSAGE_BYTES, Channel, close_all, pair
from batchpool.control.messages import GetStatus, StatusReply
from batchpool.core.errors import InternalError
from batchpool.core.metrics.segments import flight_recorder_layout
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.shm.segment import create
from batchpool.shm.stats.flight_recorder import FlightRecorder
from batchpool.supervisor.control_server import ControlServer
from batchpool.supervisor.plan.plan import ModelPlan
from batchpool.supervisor.resources.client_connection import ClientConnection
from batchpool.supervisor.resources.held_bells import HeldBells
from batchpool.supervisor.resources.lane_table import LaneEntry, LaneTable
from tests.unit.control.packets import receive_form, send_form
from tests.unit.counters import new_counters
from tests.unit.shm.scarcity import no_descriptors, open_files
from tests.unit.supervisor.plan.test_diff import plan


class Office:
    """A desk, and a local program with its connection to it."""

    def __init__(self) -> None:
        self.flight_recorder_fd = create(flight_recorder_layout(), sealed=False)
        self._read_fd = os.open(f"/proc/self/fd/{self.flight_recorder_fd}", os.O_RDONLY)
        self.counters = new_counters(1, "affine")
        self.plan = plan("a", "b", server={"client_slots": 8})
        self.book = LaneTable(8)
        resources = self.resources = SimpleNamespace(
            plan=self.plan,
            state_page=SimpleNamespace(edition=SimpleNamespace(get=lambda: 7)),
            lanes=self.book,
            counters=self.counters,
            flight_recorder_read_fd=self._read_fd,
        )
        self.statuses = 0
        self.more: dict[str, Any] = {}
        process_fleet = SimpleNamespace(open_lane=self.open_lane, tasks=SimpleNamespace(child=None))
        self.control_server = ControlServer(
            cast(Any, resources), cast(Any, process_fleet), self._status, cast(Any, None)
        )
        self.theirs, ours = pair()
        self.theirs.sock.setblocking(False)
        ours.sock.setblocking(False)
        bells = HeldBells.of_local_client()
        bells.handed_over()
        self.attached = ClientConnection("client", ours, None, -1, bells=bells, number=1)

    def open_lane(self, who: ClientConnection, model: ModelPlan, *, handed: bool) -> LaneEntry:
        assert who.bells is not None
        entry = self.book.add(
            model.entry, who.owner, model.client_lane, who.bells, client=1, pinned=False
        )
        entry.handed = handed
        return entry

    def _status(self) -> dict[str, Any]:
        self.statuses += 1
        return {"number": self.statuses, **self.more}

    def ask(self, op: str, **facts: Any) -> tuple[dict[str, Any], list[int]]:
        self.tell(op, **facts)
        return receive_form(self.theirs)

    def tell(self, op: str, **facts: Any) -> None:
        send_form(self.theirs, {"op": op, **facts})
        assert self.control_server.hear(self.attached)

    def hears_nothing(self) -> bool:
        try:
            receive_form(self.theirs)
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        for entry in self.book:
            self.book.remove(entry.number)
        self.theirs.close()
        self.attached.close()
        os.close(self._read_fd)
        os.close(self.flight_recorder_fd)


@pytest.fixture
def office() -> Iterator[Office]:
    office = Office()
    yield office
    office.close()


def test_the_status_is_answered_at_once_and_made_anew_each_time(office: Office) -> None:
    assert office.ask("status") == ({"op": "status", "status": {"number": 1}}, [])
    assert office.ask("status") == ({"op": "status", "status": {"number": 2}}, [])


def test_the_flight_recorder_is_handed_out_for_reading_only(office: Office) -> None:
    office.counters.label_worker_slot(0, "affine", 0, "cpu")
    office.counters.label_worker_slot(1, "affine", 1, "cpu")
    FlightRecorder(office.flight_recorder_fd).write(
        model=0,
        worker_slot=1,
        process=5,
        token=9,
        rows=0,
        size=1,
        reason=2,
        attempt=3,
        outcome=4,
        extents=5,
        queued_ns=6,
        dispatched_ns=7,
        launched_ns=8,
        finished_ns=9,
        completed_ns=10,
    )
    answer, (fd,) = office.ask("batches")
    try:
        assert answer["models"] == ["affine"]
        assert answer["workers"] == ["worker 0 of affine", "worker 1 of affine"]
        (entry,) = FlightRecorder(fd, writable=False).last(10)
        assert (entry.model, entry.worker_slot, entry.process, entry.token) == (0, 1, 5, 9)
        with pytest.raises(PermissionError):
            FlightRecorder(fd)
    finally:
        os.close(fd)


def test_what_nobody_understands_is_refused(office: Office) -> None:
    answer, fds = office.ask("tally")
    assert (answer["op"], answer["code"], fds) == ("error", "invalid_request", [])


def test_a_lane_comes_with_what_its_model_is_now(office: Office) -> None:
    answer, fds = office.ask("lane", model="b")
    close_all(fds)
    model = office.plan.models[1]
    assert (answer["op"], answer["model"], answer["slots"]) == ("lane", 1, 8)
    assert answer["digest"] == model.client_lane.digest
    assert ModelSpec.from_wire(answer["facts"]["spec"]) == model.spec
    assert len(fds) == 1
    again, _ = office.ask("lane", model="b")
    assert again["error"] == "this client has a lane to model 'b' already"
    unknown, _ = office.ask("lane", model="c")
    assert (unknown["code"], unknown["error"]) == (
        "not_found", "there is no model 'c'; the pool has 'a', 'b'",
    )  # fmt: skip


def test_a_lane_for_which_there_is_no_descriptor_costs_nothing(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(name: str, flags: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    before = open_files()
    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", full)
        answer, _ = office.ask("lane", model="b")
    assert re.fullmatch(
        r"cannot create shared memory for a lane of \d+ bytes: too many open files: this process"
        r" may have \d+"
        r" \(RLIMIT_NOFILE\); raise LimitNOFILE= of its service, or ulimit -n",
        answer["error"],
    )
    assert (open_files(), list(office.book)) == (before, [])
    for _ in range(8):  # every number is free still
        office.open_lane(office.attached, office.plan.models[0], handed=True)


def test_front_ends_get_their_lanes_although_clients_have_taken_all_they_may(
    office: Office,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(40)]
    # Two are free, and clients may not take an eighth of them all.
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files() + 2, hard))
    try:
        refused, _ = office.ask("lane", model="b")
        assert refused["error"].startswith("cannot open another lane: too many open files: ")
        office.attached.frontend = 0
        answer, fds = office.ask("lane", model="b")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        office.attached.frontend = None
        close_all(held)
    close_all(fds)
    assert (answer["op"], len(fds)) == ("lane", 1)


def test_a_client_for_which_there_is_no_descriptor_is_told_so_or_waits(
    office: Office, tmp_path: Path
) -> None:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    listening.bind(str(tmp_path / "s"))
    listening.listen()
    office.resources.control = SimpleNamespace(sock=listening)
    assert office.control_server.accept() is None, "nobody is there"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(str(tmp_path / "s"))
    session = Session(Channel(sock), "here")
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        office.control_server.accept()
    with no_descriptors(but=2):
        assert office.control_server.accept() is None
    with pytest.raises(InternalError, match="can take no more clients: too many open files: this"):
        session.ask(GetStatus(), StatusReply)
    assert office.control_server.local == []
    session.close()
    listening.close()


def test_who_does_not_attach_is_one_of_few(office: Office, tmp_path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    listening.bind(str(tmp_path / "s"))
    listening.listen(100)
    office.resources.control = SimpleNamespace(sock=listening)
    callers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(65)]
    for sock in callers:
        sock.connect(str(tmp_path / "s"))
    taken = [office.control_server.accept() for _ in callers]
    assert [who is not None for who in taken] == [True] * 64 + [False]
    assert b"64 connections are open that have not attached" in callers[-1].recv(4096)
    for who in taken:
        if who is not None:
            who.close()
    for sock in (*callers, listening):
        sock.close()


@pytest.mark.parametrize("model", [["a"], {"a": 1}, None, 7])
def test_nothing_that_a_client_says_ends_the_control_server(office: Office, model: Any) -> None:
    assert office.ask("lane", model=model)[0]["code"] == "invalid_request"
    assert office.ask("attach", version=[])[0]["code"] == "invalid_request"
    assert office.ask("drain", on=[1])[0]["code"] == "invalid_request"


def test_a_fault_of_ours_is_told_in_the_log_and_the_others_are_served_on(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(office.counters, "model_names", lambda: 1 / 0)
        answer, _ = office.ask("batches")
    assert (answer["code"], "ZeroDivisionError" in caplog.text) == ("internal", True)
    assert "Zero" not in answer["error"]
    assert office.ask("status")[0]["op"] == "status"


def test_an_answer_may_be_long_but_not_endless(office: Office) -> None:
    office.more = {"fill": bytes(3 * 2**20)}
    assert office.ask("status")[0]["status"]["fill"] == bytes(3 * 2**20)
    office.more = {"fill": bytes(MAX_MESSAGE_BYTES)}
    assert office.ask("status")[0]["error"].startswith("the answer is too long: control message")


def test_the_facts_of_a_model_of_very_many_tensors(office: Office) -> None:
    inputs = tuple(Tensor(f"input_number_{i}", "float32", (4,)) for i in range(3000))
    many = ModelSpec("a", "numpy", inputs, (Tensor("y", "float32"),))
    office.resources.plan = plan("a", specs={"a": many})
    answer, _ = office.ask("facts")
    assert ModelSpec.from_wire(answer["models"][0]["spec"]) == many


def test_who_asks_without_end_gets_his_turn_and_no_more(office: Office) -> None:
    office.attached.channel.sock.setblocking(False)
    for _ in range(40):
        send_form(office.theirs, {"op": "status"})
    answers = []
    while office.statuses < 40:
        before = office.statuses
        assert office.control_server.hear(office.attached)
        answers.append(office.statuses - before)
    assert max(answers) < 20
    assert office.control_server.hear(office.attached)
    assert office.statuses == 40


def test_who_sends_nonsense_is_told_so(office: Office) -> None:
    office.theirs.sock.send(b"nonsense")
    assert not office.control_server.hear(office.attached)
    answer, _ = receive_form(office.theirs)
    assert (answer["op"], answer["code"]) == ("error", "invalid_request")


def test_a_lane_that_stands_already_is_handed_out_once(office: Office) -> None:
    made = office.open_lane(office.attached, office.plan.models[0], handed=False)
    answer, fds = office.ask("lane", model="a")
    close_all(fds)
    assert (answer["serial"], made.handed, len(list(office.book))) == (made.serial, True, 1)
    assert office.ask("lane", model="a")[0]["op"] == "error"


def test_the_facts_say_which_edition_they_are(office: Office) -> None:
    answer, fds = office.ask("facts")
    assert (answer["op"], answer["edition"], fds) == ("facts", 7, [])
    assert [form["entry"] for form in answer["models"]] == [0, 1]


@pytest.mark.parametrize("moved", [True, False])
def test_a_client_leaves_only_what_is_its_own_and_has_moved(office: Office, moved: bool) -> None:
    own = office.open_lane(office.attached, office.plan.models[0], handed=True)
    attached = office.attached
    other = office.open_lane(
        ClientConnection("other", attached.channel, None, -1, bells=attached.bells, number=2),
        office.plan.models[0], handed=True,
    )  # fmt: skip
    own.moved, other.moved = moved, True
    for serial in (own.serial, other.serial, 77):
        office.tell("left", serial=serial)
    assert (own.left, other.left) == (moved, False)
    assert office.hears_nothing(), "nobody waits for an answer"


def test_who_leaves_a_lane_it_was_evicted_from_keeps_the_next_one_of_that_number(
    office: Office,
) -> None:
    """It was evicted, asked for a lane to another model, which moves too, and finds out only now
    what became of the first."""
    gone = office.open_lane(office.attached, office.plan.models[0], handed=True)
    office.book.remove(gone.number)
    next_one = office.open_lane(office.attached, office.plan.models[1], handed=True)
    next_one.moved = True
    assert next_one.number == gone.number
    office.tell("left", serial=gone.serial)
    assert not next_one.left, "it may have rows there"


@pytest.mark.parametrize("serial", ["x", -1, None])
def test_an_ill_typed_serial_is_refused_and_the_connection_goes_on(
    office: Office, serial: object
) -> None:
    own = office.open_lane(office.attached, office.plan.models[0], handed=True)
    own.moved = True
    answer, fds = office.ask("left", serial=serial)
    assert (answer["op"], answer["code"], fds) == ("error", "invalid_request", [])
    assert not own.left
    assert office.ask("status")[0]["op"] == "status"
