"""A process that a model has forked does not go on as a second worker.

It would take batches beside its parent from the same rings, until their counters are such that the
batcher ends of them, and each one that follows.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.fault.test_poison import table
from tests.process.pool_under_test import serving, until

RAISES, RETURNS, EXITS, ENDS = 1, 2, 3, 4


@pytest.mark.slow
def test_a_forked_child_that_comes_out_of_the_model_ends_there() -> None:
    with serving(table("Forking", name="forks", max_wait_ms=0)) as pool, pool.client() as client:
        (worker,) = pool.pids("worker")
        (batcher,) = pool.pids("batcher")
        before = set(pool.processes())
        for number, how in enumerate(3 * (RAISES, RETURNS, EXITS, ENDS)):
            found = client.infer("forks", tag=[number, -number], how=[how, 0])
            assert found["tag"].tolist() == [number, -number]
            assert found["pid"].tolist() == [worker, worker]
        assert set(pool.processes()) == before
        assert f"a process that the model forked in worker process {worker} came out" in pool.log
        # The rings are whole: whoever succeeds reads them.
        os.kill(batcher, signal.SIGKILL)
        until(lambda: pool.pids("batcher") not in ([], [batcher]), "another batcher")
        os.kill(worker, signal.SIGKILL)
        assert client.infer("forks", tag=[7], how=[0])["tag"].tolist() == [7]
