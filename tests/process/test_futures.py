"""Futures of bp.Client.submit: results, cancelling, time-outs, callbacks, a full lane."""

from __future__ import annotations

import concurrent.futures as cf
import threading
import time
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from batchpool.core.layout.segments import RECORDS
from tests.process.gates import open_gate, opened_at_last
from tests.process.models import FAULTS
from tests.process.pool_under_test import PATIENCE_S, Pool, until


def submit_tag(client: bp.Client, tag: int, gate: int = 0, **more: Any) -> Any:
    return client.submit("probe", tag=[tag], seconds=[0.0], gate=[gate], **more)


def test_a_thousand_futures_each_with_its_own_result(client: bp.Client) -> None:
    done: list[int] = []
    futures = []
    for tag in range(1000):
        while True:
            try:
                future = submit_tag(client, tag)
                break
            except bp.Overloaded:
                futures[len(done)].result(PATIENCE_S)
        future.add_done_callback(lambda f: done.append(f.result()["tag"][0]))
        futures.append(future)
    assert [future.result(PATIENCE_S)["tag"].tolist() for future in futures] == [
        [t] for t in range(1000)
    ]
    until(lambda: len(done) == 1000, "every callback")
    assert sorted(done) == list(range(1000))


def test_a_future_carries_the_error_of_its_row(client: bp.Client) -> None:
    good = client.submit("faulty", x=[2.0], fault=[0])
    bad = client.submit("faulty", x=[1.0], fault=[FAULTS["raises"]])
    # They may ride together; a failing batch fails all of its rows.
    assert isinstance(bad.exception(PATIENCE_S), bp.ModelError)
    cf.wait([good, bad], timeout=20)
    assert client.submit("faulty", x=[2.0], fault=[0]).result(PATIENCE_S)["y"].tolist() == [4]


def test_a_full_lane_refuses_at_once_and_opens_again(everyday: Pool) -> None:
    """C27, C29: bp.Overloaded for a local program; as many come in again."""
    with everyday.client() as client, opened_at_last(everyday, 501):
        blocker = submit_tag(client, -1, gate=501)
        futures = []
        with pytest.raises(bp.Overloaded, match=r"92[01] of 1024") as caught:
            for tag in range(2000):
                futures.append(submit_tag(client, tag))
        assert caught.value.retry_after_ms >= 1
        assert len(futures) == 920  # with the blocker the 921 that 0.9 of 1,024 slots allow
        with pytest.raises(bp.Overloaded):
            submit_tag(client, -2)
        open_gate(everyday, 501)
        assert blocker.result(PATIENCE_S)["tag"].tolist() == [-1]
        tags = [future.result(PATIENCE_S)["tag"][0] for future in futures]
        assert tags == list(range(920))
        again = [submit_tag(client, tag) for tag in range(921)]
        assert [future.result(PATIENCE_S)["tag"][0] for future in again] == list(range(921))


def test_more_rows_than_a_lane_takes_at_once_are_too_large(client: bp.Client) -> None:
    """C13: refused at once with the limit."""
    with pytest.raises(bp.TooLarge, match=r"922 rows.*921"):
        client.submit("affine", x=np.zeros((922, 4), np.float32))


def test_cancelling_takes_back_what_has_not_been_dispatched(everyday: Pool) -> None:
    until(lambda: everyday.claimed() == 0, "the slots of those that were here before")
    with everyday.client() as client, opened_at_last(everyday, 502):
        before = everyday.tally("probe")
        blocker = submit_tag(client, -1, gate=502)
        until(lambda: everyday.tally("probe")["batches"] > before["batches"], "the blocker's start")
        futures = [submit_tag(client, tag) for tag in range(100)]
        assert all(future.cancel() for future in futures[::2])
        assert all(future.cancelled() and future.done() for future in futures[::2])
        # Cancelled futures are done for everybody who waits on them, too.
        assert cf.wait(futures[::2], timeout=5).not_done == set()
        with pytest.raises(cf.CancelledError):
            futures[0].result(0)
        open_gate(everyday, 502)
        assert [f.result(PATIENCE_S)["tag"][0] for f in futures[1::2]] == list(range(1, 100, 2))
        assert blocker.result(PATIENCE_S)["tag"].tolist() == [-1]
        assert not blocker.cancel(), "it has its result"
        until(lambda: everyday.claimed() == 0, "the return of all slots")
        after = everyday.tally("probe")
        # Batches of 8 that stand behind the blocker were dispatched already; the worker leaves out
        # their cancelled rows when it comes to them.
        cancelled = after["cancelled"] - before["cancelled"]
        assert 50 - (RECORDS - 1) * 4 <= cancelled <= 50
        dispatched = after["rows"] - before["rows"]
        assert 101 - cancelled <= dispatched <= 101 - cancelled + (RECORDS - 1) * 4


def test_cancelling_a_running_row_gives_its_slot_back_later(everyday: Pool) -> None:
    until(lambda: everyday.claimed() == 0, "the slots of those that were here before")
    with everyday.client() as client, opened_at_last(everyday, 503):
        before = everyday.tally("probe")["batches"]
        running = submit_tag(client, 1, gate=503)
        until(lambda: everyday.tally("probe")["batches"] > before, "the start of the row")
        assert running.cancel()
        assert running.cancel(), "cancelling twice is no error"
        assert everyday.claimed() == 1
        open_gate(everyday, 503)
        until(lambda: everyday.claimed() == 0, "the return of the slot")


def test_a_future_ends_at_its_deadline(everyday: Pool, client: bp.Client) -> None:
    """And not with its row, which goes on until the gate opens."""
    submit_tag(client, 0).result(PATIENCE_S)  # the reaper waits for nothing
    with opened_at_last(everyday, 504):
        for _ in range(3):
            start = time.monotonic()
            future = client.submit("slow", tag=[1], seconds=[0.0], gate=[504], timeout_s=0.1)
            assert isinstance(future.exception(PATIENCE_S), bp.DeadlineExceeded)
            assert time.monotonic() - start >= 0.1


def test_a_future_ends_at_its_deadline_while_another_thread_waits(
    everyday: Pool, client: bp.Client
) -> None:
    """And not with the other row, which goes on until the gate opens."""
    submit_tag(client, 0).result(PATIENCE_S)
    client.infer("slow", tag=[0], seconds=[0.0])
    until(lambda: everyday.claimed() == 0, "the slots of those that were here before")
    with cf.ThreadPoolExecutor(1) as threads, opened_at_last(everyday, 505):
        waiting = threads.submit(client.infer, "slow", tag=[5], seconds=[0.0], gate=[505])
        until(lambda: everyday.claimed() == 1, "the other thread's call")
        future = submit_tag(client, 1, gate=505, timeout_s=0.1)
        assert isinstance(future.exception(PATIENCE_S), bp.DeadlineExceeded)
        assert not waiting.done()
        open_gate(everyday, 505)
        assert waiting.result(PATIENCE_S)["tag"].tolist() == [5]


def test_a_callback_may_use_the_client(client: bp.Client) -> None:
    chained: list[Any] = []
    finished = threading.Event()

    def call_again(future: cf.Future[dict[str, Any]]) -> None:
        chained.append(future.result()["tag"][0])
        if len(chained) == 20:
            finished.set()
        else:
            submit_tag(client, len(chained)).add_done_callback(call_again)

    submit_tag(client, 0).add_done_callback(call_again)
    assert finished.wait(PATIENCE_S)
    assert chained == list(range(20))


def test_a_callback_may_wait_for_another_thread_that_uses_the_client(
    everyday: Pool, client: bp.Client
) -> None:
    """No callback runs under the client's lock, whatever ended its future."""
    outcomes: list[Any] = []

    def infer_elsewhere(future: cf.Future[dict[str, Any]]) -> None:
        with cf.ThreadPoolExecutor(1) as threads:
            found = threads.submit(client.infer, "probe", tag=[7], seconds=[0.0]).result(PATIENCE_S)
        outcomes.append((type(future.exception()), found["tag"][0]))

    submit_tag(client, 1).add_done_callback(infer_elsewhere)
    with opened_at_last(everyday, 506):
        late = client.submit("slow", tag=[2], seconds=[0.0], gate=[506], timeout_s=0.1)
        late.add_done_callback(infer_elsewhere)
        until(lambda: len(outcomes) == 2, "both callbacks")
    assert sorted(outcomes, key=str) == [(type(None), 7), (bp.DeadlineExceeded, 7)]


def test_a_callback_that_raises_harms_nobody(
    client: bp.Client, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(future: cf.Future[dict[str, Any]]) -> None:
        raise ValueError("a callback's own fault")

    futures = [submit_tag(client, tag) for tag in range(20)]
    futures[3].add_done_callback(fail)
    assert [future.result(PATIENCE_S)["tag"][0] for future in futures] == list(range(20))
    assert submit_tag(client, 30).result(PATIENCE_S)["tag"].tolist() == [30]


def test_threads_that_wait_for_room_get_it_as_soon_as_there_is_some(everyday: Pool) -> None:
    """Slots that one thread gives back wake another one that waits for them."""
    with everyday.client() as client:
        x = np.arange(921 * 4, dtype=np.float32).reshape(921, 4)
        client.infer("affine", x=x)
        start = time.monotonic()
        with cf.ThreadPoolExecutor(4) as threads:
            calls = [threads.submit(client.infer, "affine", x=x + i) for i in range(40)]
            for i, call in enumerate(calls):
                np.testing.assert_array_equal(call.result(PATIENCE_S)["y"], 2 * (x + i) + 1)
        # Each takes a few milliseconds; lost wake-ups would cost half a second each.
        assert time.monotonic() - start < 15


def test_a_call_that_fails_leaves_no_slot_behind(everyday: Pool) -> None:
    """Also not those of its other windows, done or not."""
    n = 3000
    fault = np.zeros(n, np.int64)
    fault[0] = FAULTS["raises"]
    with everyday.client() as client:
        for _ in range(10):
            with pytest.raises(bp.ModelError):
                client.infer("faulty", x=np.zeros(n, np.float32), fault=fault)
        client.infer("faulty", x=[0.0], fault=[0])
        until(lambda: everyday.claimed() == 0, "the return of all slots")
