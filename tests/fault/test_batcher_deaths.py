"""The batcher dies: the next one takes over from shared memory, and every request is answered."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from tests.process.gates import open_gate, opened_at_last
from tests.process.load import Load
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until

ROUNDS = 6


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with serving({"import": "Affine", "workers_per_device": 2}, "Probe") as pool:
        yield pool


@pytest.fixture
def client(pool: Pool) -> Iterator[bp.Client]:
    with pool.client() as client:
        yield client


def kill_batcher(pool: Pool) -> None:
    """SIGKILL, and the next one is there (it answers the question for the counts)."""
    (victim,) = pool.pids("batcher")
    os.kill(victim, signal.SIGKILL)
    until(lambda: pool.pids("batcher") not in ([], [victim]), "another batcher")


def restarts(pool: Pool) -> dict[str, int]:
    return {row["name"]: row["restarts"] for row in pool.status()["processes"]}


def submit(client: bp.Client, model: str, tag: int, seconds: float = 0.0) -> Any:
    return client.submit(model, tag=[tag], seconds=[seconds])


@pytest.mark.long
def test_killed_again_and_again_under_load_every_request_is_answered_once(
    pool: Pool, client: bp.Client
) -> None:
    """C17: a batcher that dies is followed by the next."""
    submit(client, "probe", 0).result(PATIENCE_S)
    before = restarts(pool)
    with Load(pool) as load:
        for round_ in range(ROUNDS):
            answers: list[int] = []
            tags = range(1000 * round_, 1000 * round_ + 300)
            futures = [submit(client, "probe", tag) for tag in tags]
            for future in futures:
                future.add_done_callback(lambda f, a=answers: a.append(f.result()["tag"][0]))
            kill_batcher(pool)
            assert [future.result(PATIENCE_S)["tag"][0] for future in futures] == list(tags)
            until(lambda: len(answers) == len(tags), "every callback")  # noqa: B023
            assert sorted(answers) == list(tags)
            answered = load.answered
            until(lambda: load.answered > answered + 10, "more answers")  # noqa: B023
        assert (load.lost, load.absent, load.refused, load.faults) == (0, 0, 0, [])
    expected = {**before, "batcher": before["batcher"] + ROUNDS}
    assert restarts(pool) == expected, "only the batcher was restarted"
    assert pool.zombies() == []
    until(lambda: pool.claimed() == 0, "the return of all slots")


def test_a_batch_that_runs_meanwhile_is_waited_for_and_not_run_again(
    pool: Pool, client: bp.Client
) -> None:
    first = submit(client, "probe", 1).result(PATIENCE_S)["call"][0]
    before = pool.tally("probe")["batches"]
    with opened_at_last(pool, 2):
        running = client.submit("probe", tag=[2], seconds=[0.0], gate=[2])
        until(lambda: pool.tally("probe")["batches"] == before + 1, "the start of the row")
        waiting = [submit(client, "probe", tag) for tag in range(3, 40)]
        kill_batcher(pool)
    found = running.result(PATIENCE_S)
    assert (found["tag"][0], found["call"][0]) == (2, first + 1)
    after = [future.result(PATIENCE_S) for future in waiting]
    assert [f["tag"][0] for f in after] == list(range(3, 40))
    calls = sorted({int(f["call"][0]) for f in after})
    assert calls == list(range(first + 2, first + 2 + len(calls))), "none in between"
    until(lambda: pool.claimed() == 0, "the return of all slots")


def test_nothing_piles_up_with_deaths(pool: Pool, client: bp.Client) -> None:
    x = np.ones((3, 4), np.float32)

    def counts() -> tuple[int, int]:
        found = pool.holdings()
        return found[pool.pid][0], sum(descriptors for descriptors, _ in found.values())

    def is_settled() -> bool:
        """One lane is left, and no child that closes what other clients had."""
        pids = {row["pid"] for row in pool.status()["processes"]}
        return len(pool.lanes()) == 1 and set(pool.processes()) == pids

    kill_batcher(pool)
    client.infer("affine", x=x)
    until(is_settled, "the end of what was before")
    before = counts()
    for _ in range(3):
        kill_batcher(pool)
        assert client.infer("affine", x=x)["y"].tolist() == [[3] * 4] * 3
    until(
        lambda: all(now <= was for now, was in zip(counts(), before, strict=True)),
        "the descriptors of before",
    )


def worker_of_probe(pool: Pool) -> int:
    """Its pid; 0 while there is none."""
    rows = pool.status()["processes"]
    return next(row["pid"] or 0 for row in rows if row["name"] == "worker 0 of probe")


def test_batcher_and_worker_die_together(pool: Pool, client: bp.Client) -> None:
    for round_ in range(4):
        tags = range(100 * round_, 100 * round_ + 100)
        futures = [submit(client, "probe", tag, 0.05 * (tag % 100 == 0)) for tag in tags]
        victims = [worker_of_probe(pool), *pool.pids("batcher")]
        for victim in victims if round_ % 2 else reversed(victims):
            os.kill(victim, signal.SIGKILL)
        assert [future.result(PATIENCE_S)["tag"][0] for future in futures] == list(tags)
        # They may all have been answered before the deaths are known.
        until(lambda: worker_of_probe(pool) not in (0, victims[0]), "another worker")  # noqa: B023
        until(lambda: pool.status()["models"]["probe"]["workers"] == "1/1", "its readiness")
    until(lambda: pool.claimed() == 0, "the return of all slots")


def test_a_batcher_that_dies_in_the_drain_ends_nothing_early() -> None:
    with serving("Probe") as pool, pool.client() as client, opened_at_last(pool, 1):
        held = client.submit("probe", tag=[0], seconds=[0.0], gate=[1])
        futures = [held, *(submit(client, "probe", tag) for tag in range(1, 200))]
        until(lambda: pool.tally("probe")["batches"], "the first batch")
        (victim,) = pool.pids("batcher")
        pool.signal(signal.SIGTERM)
        until(lambda: pool.status()["state"] == "draining", "the drain")
        os.kill(victim, signal.SIGKILL)
        open_gate(pool, 1)
        assert [future.result(PATIENCE_S)["tag"][0] for future in futures] == list(range(200))
        assert pool.wait_end() == 0
        pool.assert_all_answered()


def owners(pool: Pool) -> set[str]:
    """The front ends that have lanes."""
    lanes = pool.status()["lanes"]
    return {lane["owner"] for lane in lanes if lane["owner"].startswith("frontend")}


def test_a_front_end_that_dies_is_replaced_and_its_lane_taken_back(
    pool: Pool, client: bp.Client
) -> None:
    def answer() -> bytes:
        with socket.create_connection(("127.0.0.1", pool.port), timeout=PATIENCE_S) as connection:
            body = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'
            head = b"POST /v2/models/affine/infer HTTP/1.1\r\nHost: pool\r\nConnection: close\r\n"
            length = b"Content-Length: %d\r\n\r\n" % len(body)
            connection.sendall(head + length + body)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    client.infer("affine", x=np.ones((1, 4), np.float32))
    for _ in range(2):
        assert answer().startswith(b"HTTP/1.1 200")
        (victim,) = pool.pids("frontend")
        os.kill(victim, signal.SIGKILL)
        # Connections meanwhile wait in the socket that the supervisor holds.
        assert b"[3.0,5.0,7.0,9.0]" in answer().replace(b" ", b"")
        (frontend,) = pool.pids("frontend")
        ours = {f"frontend 0 (pid {frontend})"}
        until(lambda: owners(pool) == ours, "the end of the dead one's lanes")  # noqa: B023
    assert client.infer("affine", x=np.ones((1, 4), np.float32))["y"].tolist() == [[3] * 4]
