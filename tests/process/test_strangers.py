"""A local client of every hostile kind harms nobody: one process each, of another user if may be.

While it does its mischief neighbours get right answers, no process of the pool ends, operators are
answered, and when it has left nothing of it is left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

import numpy as np
import pytest

from bench.hostile.local_kinds import LOCAL_KINDS
from tests.process.hostile_process import LOOK_S, HostileProcess, hostile_process
from tests.process.load import Load
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until

NOBODY = 65534
ONES = np.ones((1, 4), np.float32)
AS_ANOTHER = [str(NOBODY)] if os.getuid() == 0 else []


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with serving("Affine", server={"client_slots": 64}) as pool:
        os.chmod(pool.folder, 0o755)
        os.chmod(pool.socket, 0o666)
        yield pool


def stranger(pool: Pool, kind: str, *uid: str) -> AbstractContextManager[HostileProcess]:
    """A hostile local client; see `hostile_process`."""
    return hostile_process(kind, pool.socket, *uid, end_s=PATIENCE_S)


def pids(pool: Pool) -> dict[str, int]:
    return {row["name"]: row["pid"] for row in pool.status()["processes"]}


def descriptors(pool: Pool) -> dict[int, int]:
    return {pid: held for pid, (held, _) in pool.holdings().items()}


def test_the_log_names_the_process_whose_lane_was_closed(pool: Pool) -> None:
    """The first of its kind here: of equal messages within ten seconds only a few are written."""
    with stranger(pool, "submits_impossible_entries", *AS_ANOTHER) as hostile:
        uid = AS_ANOTHER[0] if AS_ANOTHER else os.getuid()
        name = f"(pid {hostile.pid}) of uid {uid}, python"
        line = "to model 'affine' is closed as broken: "
        until(lambda: any(name in text and line in text for text in pool.log.splitlines()), line)


@pytest.mark.parametrize("kind", LOCAL_KINDS)
def test_a_stranger_harms_nobody(pool: Pool, kind: str) -> None:
    before, held = pids(pool), descriptors(pool)
    with Load(pool, threads=1) as load, stranger(pool, kind, *AS_ANOTHER) as hostile:
        answered = load.answered
        while not hostile.is_through() or load.answered < answered + 50:
            assert load.faults == []
            assert pool.status()["state"] == "ready"
            time.sleep(LOOK_S)
    assert hostile.account["status"] == 0, hostile.account
    assert (load.faults, load.refused, load.lost, load.absent) == ([], 0, 0, 0)
    until(lambda: not pool.lanes(), "the return of every lane")
    assert pids(pool) == before, pool.log
    # The connection over which they were asked for may have been among them before. A child that
    # closes sockets may be there still, or have been there before.
    until(
        lambda: all(pid in held and now <= held[pid] for pid, now in descriptors(pool).items()),
        "descriptors as before",
    )
    until(lambda: not pool.zombies(), "the end of the children that closed sockets")
    assert "Traceback" not in pool.log


@pytest.mark.parametrize("kind", ["closes_its_bell", "destroys_the_head", "scribbles"])
def test_a_batcher_that_takes_over_from_a_stranger_serves(pool: Pool, kind: str) -> None:
    """It is handed the same bells and lanes as the one that died."""
    with Load(pool, threads=1) as load, stranger(pool, kind, *AS_ANOTHER):
        for _ in range(2):
            (victim,) = pool.pids("batcher")
            os.kill(victim, 9)
            until(lambda v=victim: pool.pids("batcher") not in ([], [v]), "another batcher")
            answered = load.answered
            until(lambda n=answered: load.answered > n + 20, "more answers")
    assert load.faults == []
    until(lambda: not pool.lanes(), "the return of every lane")
    restarts = {row["name"]: row["restarts"] for row in pool.status()["processes"]}
    assert restarts["batcher"] % 2 == 0, "nobody ended it but this test"
    assert "Traceback" not in pool.log


def test_strangers_cannot_fill_the_log(pool: Pool) -> None:
    """Of equal messages within ten seconds five are written, and the number of the others."""
    begun_s = time.monotonic()
    with stranger(pool, "sends_descriptors", *AS_ANOTHER) as hostile:
        while not hostile.has_done(2):
            assert pool.status()["state"] == "ready"
            time.sleep(LOOK_S)
    name = f"(pid {hostile.pid})"
    lines = [text for text in pool.log.splitlines() if name in text and "descriptors" in text]
    periods = 1 + int(time.monotonic() - begun_s) // 10
    assert len(lines) <= 6 * periods, lines


needs_root = pytest.mark.skipif(not AS_ANOTHER, reason="needs root to become another user")


@needs_root
def test_who_never_attaches_leaves_room_for_all_others_and_is_closed(pool: Pool) -> None:
    with stranger(pool, "never_attaches", *AS_ANOTHER):
        for _ in range(20):
            assert pool.status()["state"] == "ready"
            with pool.client() as client:
                assert client.infer("affine", x=ONES)["y"].tolist() == [[3] * 4]


@needs_root
def test_one_user_cannot_take_every_place(pool: Pool) -> None:
    with stranger(pool, "takes_every_place", *AS_ANOTHER) as hostile:
        until(lambda: len(pool.lanes()) == 24, "its share of max_clients = 32")
        with pool.client() as client:
            assert client.infer("affine", x=ONES)["y"].tolist() == [[3] * 4]
    assert "24 local clients of uid 65534 are attached" in hostile.account["refusals"][0][0]
    until(lambda: not pool.lanes(), "the return of every lane")


def test_a_connection_that_says_nothing_is_closed_in_time(pool: Pool) -> None:
    """One that has attached stays, however long it says nothing."""
    import socket

    silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    silent.connect(pool.socket)
    with pool.client() as client:
        client.infer("affine", x=ONES)
        silent.settimeout(60)
        assert b"neither attached nor asked anything in time" in silent.recv(4096)
        assert silent.recv(1) == b""
        assert client.infer("affine", x=ONES)["y"].tolist() == [[3] * 4]
    silent.close()
