"""Callers that hang up in crowds leave nothing: no slot, no work, no descriptor, no long end."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fault.ledger import fill_workers, ledger_table, open_gate, runs, tags_of, tags_run
from tests.fault.test_worker_deaths import serves_again
from tests.process.pool_under_test import Pool, serving, until
from tests.process.web import ROADS, Road, ask, outputs

CROWD = 200
ROUNDS = 5
GATES = itertools.count(1)
TAGS = itertools.count(10_000, 10_000)
LISTENS = "0A"  # in /proc/net/tcp
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset


@pytest.fixture(scope="module")
def pool() -> Any:
    with serving(ledger_table(slots=256)) as pool:  # 230 may be claimed
        yield pool


def claimed(pool: Pool) -> int:
    """Slots that the front end has claimed."""
    lanes = pool.status()["lanes"]
    return sum(lane["claimed"] for lane in lanes if lane["owner"].startswith("frontend"))


def descriptors(pool: Pool) -> int:
    (frontend,) = pool.pids("frontend")
    return len(os.listdir(f"/proc/{frontend}/fd"))


def connections_of(pool: Pool) -> list[str]:
    """The front end's ends of connections that it has not closed yet."""
    port = f":{pool.port:04X}"
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row[2] for row in rows if row[1].endswith(port) and row[3] != LISTENS]


def connect(pool: Pool, request: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", pool.port))
    connection.sendall(request)
    return connection


def hang_up(connections: Sequence[socket.socket]) -> None:
    """Half of them politely, half with a reset."""
    for i, connection in enumerate(connections):
        if i % 2:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        connection.close()


def crowd(pool: Pool, road: Road, first: int, then: Callable[[], Any]) -> None:
    """A crowd that asks, waits for `then`, and hangs up."""
    requests = [road.request("ledger", "row", [[first + i, 0]]) for i in range(CROWD)]
    connections = [connect(pool, request) for request in requests]
    then()
    hang_up(connections)


@pytest.mark.parametrize("road", ["json", "raw", "gzip"])
def test_crowds_that_hang_up_while_they_wait_are_never_run(pool: Pool, road: str) -> None:
    """C24: every slot comes back at once although the worker is busy, and no row is run."""
    gate, first = next(GATES), next(TAGS)
    with pool.client() as client:
        ROADS[road].infer(pool, "ledger", "row", [[first + 9999, 0]])
        until(lambda: claimed(pool) == 0, "a quiet front end")
        before, at_rest = pool.tally("ledger"), descriptors(pool)
        blockers = fill_workers(pool, client, first, gate)
        for round_ in range(ROUNDS):

            def all_wait() -> None:
                until(lambda: claimed(pool) == CROWD, "the whole crowd")

            crowd(pool, ROADS[road], first + 1000 * (1 + round_), all_wait)
            until(lambda: claimed(pool) == 0, "the return of every slot")
        until(lambda: descriptors(pool) <= at_rest, "the descriptors of before")
        assert pool.tally("ledger")["cancelled"] - before["cancelled"] == ROUNDS * CROWD
        open_gate(pool, gate)
        blocking = tags_of(blockers)
        answer = ROADS[road].infer(pool, "ledger", "row", [[first + 9000, 0], [first + 9001, 0]])
        assert outputs(answer) == {"tag": [first + 9000, first + 9001]}
        run = [tag for tag in tags_run(pool) if first <= tag < first + 9500]
        assert run == [*blocking, first + 9000, first + 9001]


@pytest.mark.parametrize("road", ["json", "gzip"])
def test_crowds_that_hang_up_at_any_moment(pool: Pool, road: str) -> None:
    """Some are read, some run and some answered by then: all slots and descriptors come back."""
    first = next(TAGS)
    ROADS[road].infer(pool, "ledger", "row", [[first + 9999, 0]])
    until(lambda: claimed(pool) == 0, "a quiet front end")
    at_rest = descriptors(pool)
    for round_ in range(ROUNDS):
        crowd(pool, ROADS[road], first + 1000 * round_, lambda: None)
    until(lambda: descriptors(pool) <= at_rest, "the descriptors of before")
    until(lambda: claimed(pool) == 0, "the return of every slot")
    answer = ROADS[road].infer(pool, "ledger", "row", [[first + 9000, 0]])
    assert outputs(answer) == {"tag": [first + 9000]}
    tally = pool.tally("ledger")
    assert tally["completed"] == tally["admitted"], "an accepted row was forgotten"
    assert tally["failed"] == tally["queued"] == 0
    run = [tag for tag in tags_run(pool) if first <= tag < first + 9000]
    assert len(run) == len(set(run)), "a row was run twice"


def test_rows_of_a_dead_worker_are_not_run_again_for_callers_who_have_gone(pool: Pool) -> None:
    gate, first = next(GATES), next(TAGS)
    request = ROADS["raw"].request("ledger", "row", [[first + i, gate] for i in range(4)])
    caller = connect(pool, request)
    until(lambda: first in tags_run(pool), "the start of its rows")
    hang_up([caller])
    until(lambda: not connections_of(pool), "the front end's notice")
    assert ask(pool, "/v2/health/live").status == 200, "and what follows from it"
    assert claimed(pool) == 4, "rows that run keep their slots"
    (worker,) = pool.pids("worker")
    os.kill(worker, signal.SIGKILL)
    until(lambda: claimed(pool) == 0, "the return of every slot")
    serves_again(pool, "ledger", 1)
    answer = ROADS["raw"].infer(pool, "ledger", "row", [[first + 9000, 0]])
    assert outputs(answer) == {"tag": [first + 9000]}
    run = [tag for tag in tags_run(pool) if first <= tag < first + 9500]
    assert sorted(run) == [first, first + 1, first + 2, first + 3, first + 9000]


@pytest.mark.long
def test_a_front_end_killed_with_a_crowd_waiting_leaves_no_work() -> None:
    """C47: the rows of a dead process are dropped, its slots are the next one's."""
    gate, first = next(GATES), next(TAGS)
    with serving(ledger_table(slots=256)) as pool, pool.client() as client:
        blockers = fill_workers(pool, client, first, gate)
        rows = [[first + 1000 + i, 0] for i in range(100)]
        connections = [connect(pool, ROADS["raw"].request("ledger", "row", [r])) for r in rows]
        until(lambda: claimed(pool) == 100, "the whole crowd")
        (victim,) = pool.pids("frontend")
        os.kill(victim, signal.SIGKILL)
        until(lambda: pool.pids("frontend") not in ([], [victim]), "another front end")
        open_gate(pool, gate)
        answer = ROADS["raw"].infer(pool, "ledger", "row", [[first + 2000, 0]])
        assert outputs(answer) == {"tag": [first + 2000]}
        assert tags_run(pool) == [*tags_of(blockers), first + 2000]
        assert claimed(pool) == 0
        hang_up(connections)


def test_nobody_waits_at_the_end_for_callers_who_have_gone() -> None:
    """C24: the row that ran is done, the one that waited was dropped: the end is an idle one."""
    with serving(ledger_table(max_batch=1)) as pool:
        request = ROADS["json"].request
        running = connect(pool, request("ledger", "row", [[1, 7]]))
        until(lambda: runs(pool), "the first row's start")
        waiting = [connect(pool, request("ledger", "row", [[tag, 7]])) for tag in range(2, 20)]
        until(lambda: claimed(pool) == 19, "the others")
        hang_up([running, *waiting])
        until(lambda: claimed(pool) <= 4, "the return of what was not dispatched")
        assert claimed(pool) >= 1, "a row that runs keeps its slot"
        open_gate(pool, 7)
        until(lambda: claimed(pool) == 0, "the return of the rest")
        start = time.monotonic()
        assert pool.stop() == 0
        assert time.monotonic() - start < 20, "it waited for the time to drain, which is 30 s"
        assert "every accepted request was answered" in pool.log
        assert set(tags_run(pool)) <= {1, 2, 3, 4}
