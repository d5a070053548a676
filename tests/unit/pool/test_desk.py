"""Questions at the desk that are answered at once: the status, and the flight recorder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchpool.core.accounts import recorder_layout
from batchpool.pool.clients import Attached
from batchpool.pool.desk import Desk
from batchpool.shm.channel import pair
from batchpool.shm.recorder import Recorder
from batchpool.shm.segment import create
from tests.unit.meters import new_meters


class Office:
    """A desk, and a local program with its connection to it."""

    def __init__(self) -> None:
        self.recorder_fd = create(recorder_layout(), sealed=False)
        self._read_fd = os.open(f"/proc/self/fd/{self.recorder_fd}", os.O_RDONLY)
        self.meters = new_meters(1, "affine")
        holdings = SimpleNamespace(
            lanes=SimpleNamespace(of_owner=lambda owner: []),
            meters=self.meters,
            recorder_read_fd=self._read_fd,
        )
        self.statuses = 0
        self.desk = Desk(cast(Any, holdings), cast(Any, None), self._status, cast(Any, None))
        self._theirs, ours = pair()
        self._theirs.sock.setblocking(False)
        self.attached = Attached("client", ours, None, -1)

    def _status(self) -> dict[str, Any]:
        self.statuses += 1
        return {"number": self.statuses}

    def ask(self, op: str) -> tuple[dict[str, Any], list[int]]:
        assert self.desk.handle(self.attached, {"op": op}, [])
        return self._theirs.receive()

    def close(self) -> None:
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
