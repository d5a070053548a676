"""Processes that are alive and do nothing: found by their heartbeats and replaced; no others."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchpool.client.session import Session
from tests.process.load import Load
from tests.process.pool_under_test import PATIENCE_S, Pool, is_alive, serving, until

LIMIT_S = 2.0
WATCHFUL = {"stall_timeout_s": LIMIT_S}
CARELESS = {"stall_timeout_s": 0}
# What a fault does to a process, at the command of a signal.
WEDGES = """
import signal, threading

def loop(number, frame):
    while True:
        pass

def deadlock(number, frame):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

signal.signal(signal.SIGUSR1, loop)
signal.signal(signal.SIGUSR2, deadlock)
"""
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
_ANY_CHILD_KIND = 0x40000000  # __WALL


def row(pool: Pool, name: str) -> dict[str, Any]:
    rows = pool.status()["processes"]
    return next(dict(row) for row in rows if row["name"] == name)


def await_successor(pool: Pool, name: str, pid: int) -> dict[str, Any]:
    """The row of the process that has taken this one's place and works."""

    def found() -> dict[str, Any] | None:
        now = row(pool, name)
        return now if now["pid"] != pid and now["state"] in ("running", "serving") else None

    successor: dict[str, Any] = until(found, f"another {name}")
    return successor


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def ask(pool: Pool, path: str, body: bytes | None = None) -> socket.socket:
    """Send a request on a connection of its own, which ends with the answer."""
    connection = socket.create_connection(("127.0.0.1", pool.port), timeout=PATIENCE_S)
    method = "GET" if body is None else "POST"
    length = "" if body is None else f"Content-Length: {len(body)}\r\n"
    head = f"{method} {path} HTTP/1.1\r\nHost: pool\r\nConnection: close\r\n{length}\r\n"
    connection.sendall(head.encode() + (body or b""))
    return connection


def infer(pool: Pool, value: int) -> socket.socket:
    body = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[%d,0,0,0]}]}' % value
    return ask(pool, "/v2/models/affine/infer", body)


def answer(connection: socket.socket) -> str:
    with connection:
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


def assert_right(connection: socket.socket, value: int) -> None:
    said = answer(connection)
    assert said.startswith("HTTP/1.1 200")
    assert f"[{2 * value + 1:.1f},1.0,1.0,1.0]" in said.replace(" ", "")


def readiness(pool: Pool) -> int:
    return int(answer(ask(pool, "/v2/health/ready")).split()[1])


def test_a_stopped_batcher_is_replaced_and_every_request_answered() -> None:
    """C17, C32: alive is not enough."""
    with serving("Affine", server=WATCHFUL) as pool, Load(pool) as load:
        (victim,) = pool.pids("batcher")
        os.kill(victim, signal.SIGSTOP)
        successor = await_successor(pool, "batcher", victim)
        assert successor["last_error"] == "made no progress for more than stall_timeout_s = 2"
        assert not is_alive(victim)
        answered = load.answered
        until(lambda: load.answered > answered + 50, "more answers")
        assert (load.lost, load.absent, load.refused) == (0, 0, 0)
        assert (
            f"batcher (pid {victim}) makes no progress for more than stall_timeout_s = 2:"
            " killing it" in pool.log
        )
        assert row(pool, "worker 0 of affine")["restarts"] == 0


@pytest.mark.long
def test_those_that_are_wedged_are_replaced(tmp_path: Path) -> None:
    """An endless loop in one and a deadlock in the other, and the other way round."""
    (tmp_path / "sitecustomize.py").write_text(WEDGES)
    env = {"PYTHONPATH": str(tmp_path)}
    loop, deadlock = signal.SIGUSR1, signal.SIGUSR2
    with serving("Affine", server=WATCHFUL, env=env) as pool, pool.client() as client:
        assert_right(infer(pool, 1), 1)
        for of_batcher, of_frontend in ((loop, deadlock), (deadlock, loop)):
            wedges = {"batcher": of_batcher, "frontend 0": of_frontend}
            victims = {name: row(pool, name)["pid"] for name in wedges}
            for name, number in wedges.items():
                os.kill(victims[name], number)
            future = client.submit("affine", x=np.ones((1, 4), np.float32))
            for name, victim in victims.items():
                successor = await_successor(pool, name, victim)
                assert successor["last_error"] == (
                    "made no progress for more than stall_timeout_s = 2"
                )
            assert future.result(PATIENCE_S)["y"].tolist() == [[3] * 4]
            assert_right(infer(pool, 2), 2)


def test_a_stopped_front_end_is_replaced_and_its_queued_connections_are_served() -> None:
    with serving("Affine", server={"frontends": 2, **WATCHFUL}) as pool:
        victim = row(pool, "frontend 0")["pid"]
        os.kill(victim, signal.SIGSTOP)
        connections = [infer(pool, value) for value in range(24)]
        for value, connection in enumerate(connections):
            assert_right(connection, value)
        successor = await_successor(pool, "frontend 0", victim)
        assert successor["last_error"] == "made no progress for more than stall_timeout_s = 2"
        assert not is_alive(victim)
        until(lambda: row(pool, "frontend 0")["progress_age_s"] is not None, "its first stamp")


@pytest.fixture(scope="module")
def careless() -> Iterator[Pool]:
    """A pool that leaves alone who stands still."""
    with serving("Affine", server={"frontends": 2, **CARELESS}) as pool:
        yield pool


def test_while_a_front_end_is_stopped_the_other_serves_on(careless: Pool) -> None:
    pool = careless
    victim, other = pool.pids("frontend")
    with stopped(victim):
        connections = [infer(pool, value) for value in range(24)]
        assert select.select(connections, [], [], PATIENCE_S)[0], "answers of the other"
        assert row(pool, "frontend 1")["pid"] == other
    for value, connection in enumerate(connections):
        assert_right(connection, value)
    assert pool.pids("frontend") == [victim, other], "nobody is killed: it is switched off"


def test_the_status_is_answered_while_the_batcher_is_stopped(careless: Pool) -> None:
    pool = careless
    earlier = pool.tally("affine")["batches"]
    with pool.client() as client:
        client.infer("affine", x=np.ones((1, 4), np.float32))
        before = pool.tally("affine")
        assert before["batches"] == earlier + 1
        (victim,) = pool.pids("batcher")
        with stopped(victim):
            until(lambda: row(pool, "batcher")["state"] == "not answering", "its silence")
            status = pool.status()
            assert status["state"] == "ready"
            assert status["models"]["affine"] == before, "what was counted is there"
            assert row(pool, "batcher")["pid"] == victim
            assert row(pool, "batcher")["progress_age_s"] > 1
            assert row(pool, "frontend 0")["state"] == "serving"
        until(lambda: row(pool, "batcher")["state"] == "running", "its stamp again")
        again = row(pool, "batcher")
        assert (again["pid"], again["restarts"]) == (victim, 0)
        assert pool.tally("affine") == before


@pytest.mark.long
def test_a_pool_that_was_stopped_as_a_whole_goes_on() -> None:
    with serving("Affine", server={"frontends": 2, **WATCHFUL}) as pool, Load(pool) as load:
        before = {row["name"]: row["pid"] for row in pool.status()["processes"]}
        pool.signal_all(signal.SIGSTOP)
        time.sleep(1.5 * LIMIT_S)  # the standstill itself
        pool.signal(signal.SIGCONT)
        for _ in range(2):  # the supervisor has looked at the others, before they can stamp
            Session.connect(pool.socket).close()
        pool.signal_all(signal.SIGCONT)

        def all_move() -> bool:
            ages_s = [row.get("progress_age_s", 0) for row in pool.status()["processes"]]
            return None not in ages_s and max(ages_s) < LIMIT_S / 2

        until(all_move, "a stamp of everybody")
        answered = load.answered
        until(lambda: load.answered > answered + 50, "more answers")
        assert {row["name"]: row["pid"] for row in pool.status()["processes"]} == before
        assert (load.lost, load.absent, load.refused) == (0, 0, 0)
        assert "killing it" not in pool.log


@contextlib.contextmanager
def debugged(pid: int) -> Iterator[None]:
    """Held still as by a debugger."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(PTRACE_SEIZE, pid, None, None) != 0:
        pytest.skip(f"no ptrace here: {os.strerror(ctypes.get_errno())}")
    assert libc.ptrace(PTRACE_INTERRUPT, pid, None, None) == 0
    os.waitpid(pid, _ANY_CHILD_KIND)
    try:
        yield
    finally:
        libc.ptrace(PTRACE_DETACH, pid, None, None)


@pytest.mark.long
def test_a_batcher_under_a_debugger_is_not_killed_but_the_pool_is_not_ready() -> None:
    with serving("Affine", server=WATCHFUL) as pool, pool.client() as client:
        x = np.ones((1, 4), np.float32)
        client.infer("affine", x=x)
        assert readiness(pool) == 200
        (victim,) = pool.pids("batcher")
        with debugged(victim):
            future = client.submit("affine", x=x)
            until(lambda: readiness(pool) == 503, "the end of readiness")
            until(lambda: row(pool, "batcher")["progress_age_s"] > 2 * LIMIT_S, "its age")
            assert row(pool, "batcher")["pid"] == victim
            assert readiness(pool) == 503
        assert future.result(PATIENCE_S)["y"].tolist() == [[3] * 4]
        until(lambda: readiness(pool) == 200, "readiness again")
        assert pool.pids("batcher") == [victim]


@pytest.mark.long
def test_a_batcher_that_is_stopped_does_not_hold_up_the_drain() -> None:
    with serving("Probe", server=WATCHFUL) as pool, pool.client() as client:
        client.submit("probe", tag=[0], seconds=[0.0]).result(PATIENCE_S)
        (victim,) = pool.pids("batcher")
        os.kill(victim, signal.SIGSTOP)
        futures = [client.submit("probe", tag=[tag], seconds=[0.0]) for tag in range(200)]
        pool.signal(signal.SIGTERM)
        assert [future.result(PATIENCE_S)["tag"][0] for future in futures] == list(range(200))
        assert pool.wait_end() == 0
        pool.assert_all_answered()
