"""The choice of who waits on the bell, with a session that has no pool behind it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from batchpool.client import reaper as module
from batchpool.client.futures import RowsFuture
from batchpool.client.lane_set import LaneSet
from batchpool.client.pending_request import PendingRequest
from batchpool.client.reaper import Reaper
from batchpool.core.errors import Moved
from tests.unit.client.lane_clients import new_lane_client, send
from tests.unit.client.scene import CountedCondition, Waits
from tests.unit.inprocess.clock import Clock

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

    def fail_all(self) -> list[PendingRequest]:
        return [p for lane_client in self.lane_set.driven for p in lane_client.fail_all()]

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
    changed = reaper.changed = CountedCondition(reaper.lock, Waits(Clock()))
    with pytest.raises(Struck), reaper.lock:
        reaper.wait(lane_client, lambda: False, NEVER_NS)
    assert not reaper.busy
    assert changed.words == 1
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


class StruckLock:
    """A lock whose next `acquire` is struck before it has the lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._struck = False

    def acquire(self) -> bool:
        if not self._struck:
            self._struck = True
            raise Struck
        return self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def _is_owned(self) -> bool:
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class PassingWaiter(StruckWaiter):
    def wait_until(self, wake_at_ns: int) -> list[int]:
        return []


@pytest.mark.parametrize("step", ["wait", "deliver"])
def test_a_thread_that_is_struck_when_it_takes_the_lock_back_has_it(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    reaper, session, lane_client = opened(monkeypatch)
    monkeypatch.setattr(module, "Waiter", PassingWaiter)
    reaper.begin(session)
    lock = reaper.lock = StruckLock()
    changed = reaper.changed = CountedCondition(lock, Waits(Clock()))
    future = RowsFuture(lambda _: True, lane_client)
    with reaper.changed:
        with pytest.raises(Struck):
            if step == "wait":
                reaper.wait(lane_client, lambda: False, NEVER_NS)
            else:
                reaper.deliver([(future, Moved("it has moved"))])
        assert lock._is_owned()
    assert not reaper.busy
    assert changed.words == (step == "wait"), "another thread may wait on the bell"
    assert step == "wait" or future.done()


def test_a_callback_that_is_struck_leaves_the_lock_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def strike(_: object) -> None:
        raise Struck

    reaper, _, lane_client = opened(monkeypatch)
    future = RowsFuture(lambda _: True, lane_client)
    future.add_done_callback(strike)
    with reaper.lock:
        with pytest.raises(Struck):
            reaper.deliver([(future, Moved("it has moved"))])
        assert reaper.lock._is_owned()
