"""A hostile HTTP caller of every kind harms nobody: one process each.

While it does its mischief neighbours get right answers over HTTP and without it, /metrics answers,
no process of the pool ends, and afterwards memory and descriptors are as before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import psutil
import pytest

from bench.hostile.http_kinds import HTTP_KINDS
from bench.hostile.store_kinds import STORE_KINDS
from tests.process.hostile_process import LOOK_S, HostileProcess, hostile_process
from tests.process.load import Load
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until
from tests.process.web import ask

# The process that sends these, and the front end, import pyarrow first, or read megabytes slowly;
# tests/unit has what they send.
LONG_KINDS = ("announces_columns", "sends_forms_without_end")
HELD_MIB = 64  # max_bodies_mib
# What a front end may grow by: what it may hold, twice as much for one decoded body and the values
# that are read of it, and what allocators keep.
GROWS_BY_MIB = 400


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    limits: dict[str, Any] = {"max_body_mib": 32, "max_bodies_mib": HELD_MIB, "frontends": 1}
    limits |= {"tasks": True, "batches": True, "state_dir": str(tmp_path_factory.mktemp("state"))}
    with serving("Affine", server=limits) as pool:
        yield pool


def caller(pool: Pool, kind: str) -> AbstractContextManager[HostileProcess]:
    """A hostile HTTP caller; see `hostile_process`."""
    return hostile_process(kind, f"{pool.port}", end_s=PATIENCE_S)


def _stored(kind: str) -> Any:
    return pytest.param(kind, marks=pytest.mark.long) if kind in LONG_KINDS else kind


def front_end(pool: Pool) -> psutil.Process:
    (pid,) = pool.pids("frontend")
    return psutil.Process(pid)


@pytest.mark.parametrize("kind", [*HTTP_KINDS, *map(_stored, STORE_KINDS)])
def test_a_hostile_connection_harms_nobody(pool: Pool, kind: str) -> None:
    """C06, C30: bombs, endless and stalled bodies: bounded memory, neighbours and /metrics
    served."""
    process = front_end(pool)
    before = process.memory_info().rss, process.num_fds()
    most = 0
    with Load(pool, threads=1) as load, caller(pool, kind) as hostile:
        answered = load.answered
        while not hostile.is_through() or load.answered < answered + 50:
            assert load.faults == []
            assert ask(pool, "/metrics").status == 200
            most = max(most, process.memory_info().rss)
            time.sleep(LOOK_S)
    assert hostile.account["status"] == 0, hostile.account
    assert (load.faults, load.lost, load.absent) == ([], 0, 0)
    assert front_end(pool).pid == process.pid, pool.log
    assert (most - before[0]) >> 20 < GROWS_BY_MIB
    until(lambda: process.num_fds() <= before[1] + 2, "descriptors as before")
    with pool.client() as client:
        assert client.infer("affine", x=np.ones((1, 4), np.float32))["y"].tolist() == [[3] * 4]
    assert "Traceback" not in pool.log
