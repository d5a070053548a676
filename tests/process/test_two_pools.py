"""Two pools on one host, of one user or of two, do not meet."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

import batchpool as bp
from batchpool.core.layout.segments import state_page_layout
from batchpool.shm import segment
from tests.process.pool_under_test import PATIENCE_S, Pool, shm_names, started, until
from tests.process.test_client_life import in_child
from tests.process.test_http import probe
from tests.process.test_start import MAKER
from tests.process.web import ask, outputs

NOBODY = 65534


class Traffic:
    """One thread that calls a pool without a pause and notes which worker answered."""

    def __init__(self, call: Callable[[], int]) -> None:
        self.answered = 0
        self.pids: set[int] = set()
        self.end: BaseException | None = None
        self.stop = False
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self.stop:
            try:
                self.pids.add(self._call())
            except BaseException as exc:
                self.end = exc
                return
            self.answered += 1

    def join(self) -> None:
        self.stop = True
        self._thread.join(20)
        assert not self._thread.is_alive()


def over_http(pool: Pool) -> int:
    answer = ask(pool, "/v2/models/probe/infer", json.dumps(probe([1])).encode())
    return int(outputs(answer)["pid"][0])


def over_memory(client: bp.Client) -> int:
    return int(client.infer("probe", tag=[1], seconds=np.zeros(1, np.float32))["pid"][0])


@pytest.mark.long
def test_two_pools_loaded_at_once_keep_apart_and_one_survives_the_others_end() -> None:
    """C46: the same configuration, started at the same moment; every answer is of its own pool."""
    with started("Probe") as one, started("Probe") as other:
        one.wait_ready()
        other.wait_ready()
        with one.client() as ones, other.client() as others:
            mine = [Traffic(lambda: over_http(one)), Traffic(lambda: over_memory(ones))]
            theirs = [Traffic(lambda: over_http(other)), Traffic(lambda: over_memory(others))]
            workers = {*one.pids("worker")}, {*other.pids("worker")}
            until(lambda: all(t.answered > 100 for t in (*mine, *theirs)), "answers of both")
            assert [t.end for t in (*mine, *theirs)] == [None] * 4
            assert other.stop() == 0
            other.assert_nothing_left()
            goal = 100 + max(traffic.answered for traffic in mine)
            until(lambda: all(traffic.answered > goal for traffic in mine), "more")
            for traffic in (*mine, *theirs):
                traffic.join()
            assert [traffic.end for traffic in mine] == [None, None]
            assert [traffic.pids for traffic in mine] == [workers[0]] * 2
            assert [traffic.pids for traffic in theirs] == [workers[1]] * 2
            with one.client() as late:
                assert over_memory(late) in workers[0]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_another_users_segments_are_neither_removed_nor_in_the_way() -> None:
    """C46: what a dead pool of ours left is ours to remove; another user makes segments beside."""
    before = shm_names()
    ended = subprocess.run([sys.executable, "-c", MAKER], check=False, timeout=PATIENCE_S)
    assert ended.returncode == -signal.SIGKILL
    (left,) = shm_names() - before

    def as_nobody() -> object:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        removed = segment.remove_leftovers()
        os.close(segment.create(state_page_layout(), sealed=False))
        return removed

    assert in_child(as_nobody) == b"[]"
    assert shm_names() - before == {left}
    assert segment.remove_leftovers() == [left]
