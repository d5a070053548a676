"""Under systemd: what it is told and when, and sockets that outlive the pool."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.process.pool_under_test import PATIENCE_S, Pool, serving, started, until
from tests.process.service_double import (
    Ear,
    assert_children_were_told_nothing,
    clients_socket,
    passing,
    tcp_socket,
)

ONES = np.ones((1, 4), np.float32)
INFER = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,1,1,1]}]}'
REQUEST = (
    b"POST /v2/models/affine/infer HTTP/1.1\r\nHost: pool\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(INFER), INFER)
)


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[Ear]:
    with Ear(str(tmp_path / "notify")) as ear:
        yield ear


def answer_at(port: int, request: bytes = REQUEST) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


# -- what is told ---------------------------------------------------------------------------


def test_ready_is_told_once_when_it_is_true_and_stopping_at_the_end(ear: Ear) -> None:
    """C60: READY=1 once, after ready is 200; STOPPING=1."""
    with started("LoadWaits", env={"NOTIFY_SOCKET": ear.name}) as pool:
        loading = "loading loadwaits on cpu; 0 of 1 workers warm"
        until(lambda: loading in ear.said("STATUS"), "word of the load")
        ear.await_more("EXTEND_TIMEOUT_USEC", 3)
        assert set(ear.said("EXTEND_TIMEOUT_USEC")[-3:]) == {"30000000"}
        assert ear.said("READY") == []
        (pool.notes / "load").touch()
        until(lambda: ear.said("READY"), "READY=1")
        assert pool.status()["state"] == "ready"
        assert answer_at(pool.port, b"GET /v2/health/ready HTTP/1.0\r\n\r\n").startswith(
            b"HTTP/1.1 200"
        )
        extensions = len(ear.said("EXTEND_TIMEOUT_USEC"))
        assert_children_were_told_nothing(pool)
        with pool.client() as client:
            client.infer("loadwaits", x=ONES)
        (pool.notes / "load").unlink()
        os.kill(pool.pids("worker")[0], signal.SIGKILL)
        lacking = "serving 1 model, 0 of 1 workers; no worker for loadwaits"
        until(lambda: ear.said("STATUS")[-1] == lacking, "word of the loss")
        (pool.notes / "load").touch()
        until(lambda: ear.said("STATUS")[-1] == "serving 1 model, 1 worker", "word of the next")
        assert len(ear.said("EXTEND_TIMEOUT_USEC")) == extensions, "only while it loads"
        assert pool.stop() == 0
        words = [word for message in ear.listen() for word in message]
        assert [w for w in words if w in ("READY", "STOPPING")] == ["READY", "STOPPING"]
        assert "WATCHDOG" not in words
        last = next(message for message in ear.listen() if "STOPPING" in message)
        assert last["EXTEND_TIMEOUT_USEC"] == "55000000"
        assert last["STATUS"] == "draining: 0 rows under way"


@pytest.mark.parametrize("abstract", [False, True])
def test_a_load_that_fails_is_told_and_is_not_ready(tmp_path: Path, abstract: bool) -> None:
    """C60: at a path and in the abstract namespace."""
    with Ear(f"@batchpool-test-{os.getpid()}" if abstract else str(tmp_path / "n")) as ear:
        with started("LoadRaises", env={"NOTIFY_SOCKET": ear.name}) as pool:
            pool.tracebacks_expected = True
            pool.expected_status = 1
            assert pool.wait_end() == 1
        assert ear.said("STATUS")[0] == "importing tests.process.models:LoadRaises"
        assert ear.said("STATUS")[-1].startswith("could not start: model 'loadraises' cannot be")
        assert ear.said("READY") == []


@pytest.mark.long
def test_the_watchdog_is_fed_only_while_batcher_and_front_ends_move(ear: Ear) -> None:
    """C60: SIGSTOP of either ends the pings."""
    watched = {"NOTIFY_SOCKET": ear.name, "WATCHDOG_USEC": "1000000"}
    with serving("Affine", env=watched, server={"stall_timeout_s": 0}) as pool:
        assert_children_were_told_nothing(pool)
        ear.await_more("WATCHDOG", 2)
        before = pool.processes()
        for kind in ("batcher", "frontend"):
            (victim,) = pool.pids(kind)
            os.kill(victim, signal.SIGSTOP)
            until(lambda pid=victim: f"(pid {pid}) stands still" in pool.log, "word of it")
            pings = len(ear.said("WATCHDOG"))
            looked_s = time.monotonic()
            until(lambda since_s=looked_s: time.monotonic() > since_s + 1, "two more to be due")
            assert len(ear.said("WATCHDOG")) == pings
            os.kill(victim, signal.SIGCONT)
            ear.await_more("WATCHDOG", 2)
        assert pool.processes() == before, "nobody was replaced"
        assert len(ear.said("READY")) == 1


# -- sockets that systemd holds -------------------------------------------------------------


class Callers:
    """Threads that connect anew for each request and try none again; how each one ended."""

    def __init__(self, port: int, count: int = 3) -> None:
        self._port = port
        self._over = threading.Event()
        self.ends: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._call) for _ in range(count)]

    def _call(self) -> None:
        while not self._over.is_set():
            try:
                answer = answer_at(self._port)
            except ConnectionRefusedError:
                end = "refused"
            except ConnectionError:
                end = "cut"
            else:
                end = answer.split(b" ", 2)[1].decode() if answer else "cut"
            self.ends[end] += 1

    def await_answers(self) -> None:
        enough = self.ends["200"] + 30
        until(lambda: self.ends["200"] >= enough, "more answers")

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)


@contextmanager
def held(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Arguments of pools that get the same two sockets, one after another."""
    path = str(tmp_path / "clients")
    with tcp_socket() as http, clients_socket(path) as clients:
        yield {
            **passing([clients, http], "clients:http"),
            "port": http.getsockname()[1],
            # What the file says of the port counts for nothing.
            "server": {"socket": path, "port": 9, "frontends": 2},
        }


@pytest.mark.long
def test_nobody_is_refused_while_the_pool_restarts_behind_its_sockets(tmp_path: Path) -> None:
    with held(tmp_path) as sockets, serving("Affine", **sockets) as first:
        url = f"http://127.0.0.1:{first.port}"
        assert f"{url} serves affine" in first.log
        assert first.status()["url"] == url
        assert_children_were_told_nothing(first)
        with Callers(first.port) as callers:
            callers.await_answers()
            assert first.stop() == 0
            assert os.path.exists(first.socket), "it is not ours to remove"
            waiting = threading.Thread(target=wait_for_the_next_pool, args=[first])
            waiting.start()
            with serving("Affine", **sockets) as second:
                waiting.join(PATIENCE_S)
                callers.await_answers()
                second.end_at_once()
                second.assert_nothing_left()
            with serving("Affine", **sockets):
                callers.await_answers()
                callers.stop()  # while there is a pool: they would wait for the next
        assert set(callers.ends) <= {"200", "503", "cut"}, "refused"


def wait_for_the_next_pool(pool: Pool) -> None:
    """Connects while there is none, and meets one that may still be loading."""
    with pool.client() as client:
        assert list(client.models()) == ["affine"]


def test_a_socket_for_each_front_end_and_nobody_who_listens() -> None:
    """C60: failure to notify is told once and not fatal."""
    with tcp_socket(reuse=True) as one, tcp_socket(one.getsockname()[1], reuse=True) as other:
        sockets = passing([one, other], "http:http")
        env = {"NOTIFY_SOCKET": "/nonexistent/notify", "WATCHDOG_USEC": "1000000"}
        server = {"frontends": "auto"}
        port = one.getsockname()[1]
        with serving("Affine", port=port, server=server, env=env, **sockets) as pool:
            inodes = {os.stat(f"/proc/self/fd/{sock.fileno()}").st_ino for sock in (one, other)}
            for pid in pool.pids("frontend"):
                for n in fds_of(pid):
                    with suppress(FileNotFoundError):  # closed since then
                        inodes.discard(os.stat(f"/proc/{pid}/fd/{n}").st_ino)
            assert len(pool.pids("frontend")) == 2
            assert inodes == set(), "each is served"
            for _ in range(20):
                assert answer_at(port).startswith(b"HTTP/1.1 200")
            assert pool.log.count("cannot notify the service manager at /nonexistent/notify") == 1


def fds_of(pid: int) -> list[str]:
    return os.listdir(f"/proc/{pid}/fd")


def test_sockets_that_do_not_fit_the_front_ends_end_the_start() -> None:
    with tcp_socket() as one, tcp_socket() as other:
        sockets = passing([one, other], "http:http")
        with started("Affine", server={"frontends": 3}, **sockets) as pool:
            pool.expected_status = 1
            assert pool.wait_end() == 1
            assert "systemd passes 2 HTTP sockets, but there are 3 front ends" in pool.last_line
