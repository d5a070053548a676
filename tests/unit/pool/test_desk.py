"""Questions at the desk that are answered at once: status, facts, lanes, the flight recorder."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchpool.core.accounts import recorder_layout
from batchpool.core.tensors import ModelSpec
from batchpool.pool.clients import Attached
from batchpool.pool.desk import Desk
from batchpool.pool.lanes import LaneBook, LaneEntry
from batchpool.pool.plan import ModelPlan
from batchpool.shm.channel import close_all, pair
from batchpool.shm.recorder import Recorder
from batchpool.shm.segment import create
from tests.unit.meters import new_meters
from tests.unit.pool.test_changes import plan


class Office:
    """A desk, and a local program with its connection to it."""

    def __init__(self) -> None:
        self.recorder_fd = create(recorder_layout(), sealed=False)
        self._read_fd = os.open(f"/proc/self/fd/{self.recorder_fd}", os.O_RDONLY)
        self.meters = new_meters(1, "affine")
        self.plan = plan("a", "b", server={"client_slots": 8})
        self.book = LaneBook(8)
        holdings = SimpleNamespace(
            plan=self.plan,
            board=SimpleNamespace(edition=SimpleNamespace(get=lambda: 7)),
            lanes=self.book,
            meters=self.meters,
            recorder_read_fd=self._read_fd,
        )
        self.statuses = 0
        staff = SimpleNamespace(open_lane=self.open_lane)
        self.desk = Desk(cast(Any, holdings), cast(Any, staff), self._status, cast(Any, None))
        self._theirs, ours = pair()
        self._theirs.sock.setblocking(False)
        self.attached = Attached("client", ours, None, -1, bell_fd=os.eventfd(0))

    def open_lane(self, who: Attached, model: ModelPlan, *, handed: bool) -> LaneEntry:
        entry = self.book.add(
            model.entry, who.owner, model.client_lane, who.bell_fd, local=True, pinned=False
        )
        entry.handed = handed
        return entry

    def _status(self) -> dict[str, Any]:
        self.statuses += 1
        return {"number": self.statuses}

    def ask(self, op: str, **facts: Any) -> tuple[dict[str, Any], list[int]]:
        self.tell(op, **facts)
        return self._theirs.receive()

    def tell(self, op: str, **facts: Any) -> None:
        assert self.desk.handle(self.attached, {"op": op, **facts}, [])

    def hears_nothing(self) -> bool:
        try:
            self._theirs.receive()
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        for entry in self.book:
            self.book.remove(entry.number)
        self._theirs.close()
        self.attached.close()
        os.close(self._read_fd)
        os.close(self.recorder_fd)


@pytest.fixture
def office() -> Iterator[Office]:
    office = Office()
    yield office
    office.close()


def test_the_status_is_answered_at_once_and_made_anew_each_time(office: Office) -> None:
    assert office.ask("status") == ({"op": "status", "status": {"number": 1}}, [])
    assert office.ask("status") == ({"op": "status", "status": {"number": 2}}, [])


def test_the_flight_recorder_is_handed_out_for_reading_only(office: Office) -> None:
    office.meters.label_seat(0, "affine", 0, "cpu")
    office.meters.label_seat(1, "affine", 1, "cpu")
    Recorder(office.recorder_fd).write(0, 1, 5, 9, *range(11))
    answer, (fd,) = office.ask("batches")
    try:
        assert answer["models"] == ["affine"]
        assert answer["workers"] == ["worker 0 of affine", "worker 1 of affine"]
        (entry,) = Recorder(fd, writable=False).last(10)
        assert (entry.model, entry.seat, entry.process, entry.token) == (0, 1, 5, 9)
        with pytest.raises(PermissionError):
            Recorder(fd)
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
    def full(fd: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", full)
        answer, _ = office.ask("lane", model="b")
    assert answer["error"] == "cannot open another lane: Too many open files"
    assert (len(os.listdir("/proc/self/fd")), list(office.book)) == (before, [])
    for _ in range(8):  # every number is free still
        office.open_lane(office.attached, office.plan.models[0], handed=True)


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
    other = office.open_lane(
        Attached("other", office.attached.channel, None, -1, bell_fd=office.attached.bell_fd),
        office.plan.models[0], handed=True,
    )  # fmt: skip
    own.moved, other.moved = moved, True
    for serial in (own.serial, other.serial, 77, "x"):
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
