"""The choice of who waits on the bell, with a session that has no pool behind it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from batchpool.client import reaper as module
from batchpool.client.lane_set import LaneSet
from batchpool.client.reaper import Reaper
from batchpool.core.errors import Moved
from tests.unit.client.lane_clients import new_lane_client, send

NEVER_NS = 2**63 - 1


class Bell:
    fd = 3

    def __init__(self) -> None:
        self.rings = 0

    def ring(self) -> None:
        self.rings += 1


class Session:
    """Stands in for a session of a pool; its lanes have no other side."""

    def __init__(self) -> None:
        self.bell, self.self_bell, self.channel = Bell(), Bell(), self
        self.lane_set = LaneSet()
        self.closed = False

    def fileno(self) -> int:
        return 4

    def close(self) -> None:
        self.closed = True


class Struck(BaseException):
    """Raised where a signal handler could raise."""


class StruckWaiter:
    def __init__(self, *fds: int) -> None:
        pass

    def wait_until(self, wake_at_ns: int) -> list[int]:
        raise Struck


def opened(monkeypatch: pytest.MonkeyPatch) -> tuple[Reaper, Any, Any]:
    monkeypatch.setattr(module, "Waiter", StruckWaiter)
    reaper, session, lane_client = Reaper(), Session(), new_lane_client()
    session.lane_set["affine"] = lane_client
    reaper.begin(session)  # type: ignore[arg-type]
    return reaper, session, lane_client


def test_a_wait_that_is_struck_leaves_the_lock_and_the_bell_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reaper, _, lane_client = opened(monkeypatch)
    with pytest.raises(Struck), reaper.lock:
        reaper.wait(lane_client, lambda: False, NEVER_NS)
    assert not reaper.busy
    taken: list[bool] = []
    thread = threading.Thread(target=lambda: taken.append(reaper.lock.acquire(blocking=False)))
    thread.start()
    thread.join()
    assert taken == [True]


def test_a_change_that_was_struck_ends_the_session_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reaper, session, lane_client = opened(monkeypatch)
    pending = send(lane_client)
    pending.tag = None  # of a call that waits by itself, not a future's
    reaper.torn = True
    with reaper.lock:
        reaper.wait(lane_client, lambda: False, NEVER_NS)
        assert isinstance(reaper.why_not(lane_client, session), Moved), "calls go on elsewhere"
    assert (reaper.session, session.closed, reaper.torn) == (None, True, False)
    assert pending.abandoned


def test_room_that_a_result_made_is_told_to_a_caller_that_waits_for_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reaper, session, _ = opened(monkeypatch)
    with reaper.lock:
        reaper.made_room()
        assert session.self_bell.rings == 0
        reaper._wanting_room += 1
        reaper.made_room()
        assert session.self_bell.rings == 1
