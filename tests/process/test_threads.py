"""One bp.Client in many threads: no crossed answers, no lost wake-ups, any thread may end it."""

from __future__ import annotations

import concurrent.futures as cf
import gc
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from tests.process.gates import opened_at_last
from tests.process.pool_under_test import PATIENCE_S, Pool, until


def in_threads(count: int, work: Any) -> list[Any]:
    """work(i) in `count` threads at once; its results, or the first exception."""
    with cf.ThreadPoolExecutor(count) as threads:
        return [
            future.result(PATIENCE_S) for future in [threads.submit(work, i) for i in range(count)]
        ]


def test_thirty_two_threads_get_their_own_answers(client: bp.Client) -> None:
    """C55: one client, unique values, no crossed answers."""

    def work(thread: int) -> int:
        for call in range(50):
            n = 1 + (thread + call) % 5
            x = (
                np.full((n, 4), 1000 * thread + call, np.float32)
                + np.arange(n, dtype=np.float32)[:, None]
            )
            found = client.infer("affine", x=x)["y"]
            np.testing.assert_array_equal(found, 2 * x + 1)
        return thread

    assert in_threads(32, work) == list(range(32))


def test_threads_that_wait_and_threads_that_submit_share_one_client(client: bp.Client) -> None:
    def work(thread: int) -> None:
        for call in range(40):
            tag = 1000 * thread + call
            if thread % 2:
                found = client.infer("probe", tag=[tag], seconds=[0.0])
            else:
                found = client.submit("probe", tag=[tag], seconds=[0.0]).result(PATIENCE_S)
            assert found["tag"].tolist() == [tag]

    in_threads(16, work)


def test_models_opened_by_many_threads_at_once(everyday: Pool) -> None:
    names = ["affine", "probe", "scaled", "ragged", "echo", "grow", "special", "faulty", "slow"]
    barrier = threading.Barrier(18)
    until(lambda: not everyday.lanes(), "the end of the lanes of others")
    with everyday.client() as client:

        def work(thread: int) -> Any:
            barrier.wait()
            with pytest.raises(bp.InvalidRequest):
                client.infer(names[thread % 9], wrong=[1])
            return client.infer("affine", x=np.full((2, 4), thread, np.float32))["y"][0, 0]

        assert in_threads(18, work) == [2 * thread + 1 for thread in range(18)]
        lanes = [lane["model"] for lane in everyday.lanes()]
        assert sorted(lanes) == sorted(names), "one lane to each model"


def test_made_in_one_thread_used_in_another_and_forgotten_in_a_third(everyday: Pool) -> None:
    """C55: no warning, and its lane comes back."""
    made: list[bp.Client] = []
    threads = [
        lambda: made.append(everyday.client()),
        lambda: np.testing.assert_array_equal(
            made[0].infer("affine", x=np.ones((1, 4), np.float32))["y"], [[3, 3, 3, 3]]
        ),
        made.clear,
    ]
    until(lambda: not everyday.lanes(), "no lanes")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for target in threads:
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        gc.collect()
    until(lambda: not everyday.lanes(), "the return of the lane of a forgotten client")


def test_closing_in_another_thread_ends_every_call(everyday: Pool) -> None:
    """C48: calls under way end with PoolStopped, and not with their rows."""
    client = everyday.client()
    before = everyday.tally("slow")["batches"]
    outcomes: list[BaseException] = []

    def work() -> None:
        try:
            client.infer("slow", tag=[1], seconds=[0.0], gate=[701])
        except BaseException as exc:
            outcomes.append(exc)

    threads = [threading.Thread(target=work) for _ in range(4)]
    with opened_at_last(everyday, 701):
        for thread in threads:
            thread.start()
        future = client.submit("slow", tag=[2], seconds=[0.0], gate=[701])  # may be the first
        until(lambda: everyday.tally("slow")["batches"] > before, "the start of a call")
        client.close()
        assert isinstance(future.exception(PATIENCE_S), bp.PoolStopped)
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    assert [type(outcome) for outcome in outcomes] == [bp.PoolStopped] * 4
    until(lambda: not everyday.lanes(), "the return of the lane")
