"""Ending: asked to, every accepted request is answered; killed, nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest

import batchpool as bp
from tests.process.gates import open_gate, opened_at_last
from tests.process.load import Load
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until
from tests.process.web import Answer, ask

URL = "/v2/models/deadly/infer"
ONES = np.ones((1, 4), np.float32)


@pytest.mark.parametrize(
    ("number", "whole_group"),
    [(signal.SIGTERM, True), (signal.SIGINT, True)],
)
def test_requests_in_flight_are_answered(number: signal.Signals, whole_group: bool) -> None:
    """C41: Ctrl+C to the whole group is SIGTERM to the parent: a drain, and no traces."""
    with serving("Slow", "Affine") as pool, pool.client() as client:
        futures = [client.submit("slow", tag=[tag], seconds=[0.1]) for tag in range(200)]
        until(lambda: pool.tally("slow")["batches"], "the first batch")
        send = pool.signal_all if whole_group else pool.signal
        send(number)
        assert [future.result(PATIENCE_S)["tag"][0] for future in futures] == list(range(200))
        assert pool.wait_end() == 0
        pool.assert_all_answered()
        assert "Traceback" not in pool.log
        assert "WARNING" not in pool.log, "nobody was lost or started anew"
        assert "KeyboardInterrupt" not in pool.log
        assert "resource_tracker" not in pool.log, "a warning of leaked shared memory"


def test_what_comes_while_draining_is_refused_as_draining() -> None:
    with serving("Slow", "Affine") as pool, pool.client() as client, opened_at_last(pool, 1):
        client.infer("affine", x=ONES)
        future = client.submit("slow", tag=[1], seconds=[0.0], gate=[1])
        until(lambda: pool.tally("slow")["batches"], "the start of the row")
        pool.signal(signal.SIGTERM)
        until(lambda: pool.status()["state"] == "draining", "the drain")
        with pytest.raises(bp.Draining):  # as soon as the batcher has heard of it too
            until(lambda: client.infer("affine", x=ONES) is None, "a refusal")
        with pytest.raises(bp.Draining):
            client.submit("affine", x=ONES)
        open_gate(pool, 1)
        assert future.result(PATIENCE_S)["tag"].tolist() == [1]
        assert pool.wait_end() == 0


def test_a_drain_under_load_loses_nothing() -> None:
    with serving({"import": "Affine", "workers_per_device": 2}) as pool, Load(pool) as load:
        pool.signal(signal.SIGTERM)
        assert pool.wait_end() == 0
        pool.assert_all_answered()
        until(lambda: load.absent, "a call after the end")
        assert load.lost == 0


def test_a_request_that_is_published_too_late_is_known_not_to_have_run() -> None:
    with serving("Affine") as pool, pool.client() as client:
        client.infer("affine", x=ONES)
        lane_client = client._driver.open_lane_client("affine")
        flush = lane_client.flush

        def flush_late() -> int:  # a thread that stands still between its claim and the bell
            pool.signal(signal.SIGTERM)
            assert pool.wait_end() == 0
            return flush()

        lane_client.flush = flush_late  # type: ignore[method-assign]
        with pytest.raises(bp.PoolStopped, match="the request did not run"):
            client.infer("affine", x=ONES)
        assert "every accepted request was answered" in pool.log


def test_idle_connections_do_not_hold_up_the_end() -> None:
    """C40: ten of them, kept alive."""
    with serving("Affine") as pool, pool.client() as client:
        client.infer("affine", x=ONES)
        connections = [socket.create_connection(("127.0.0.1", pool.port)) for _ in range(10)]
        for connection in connections:
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: pool\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        start = time.monotonic()
        assert pool.stop() == 0
        assert time.monotonic() - start < 20, "it waited for the time to drain, which is 30 s"
        for connection in connections:
            connection.close()


def test_a_hung_model_is_ended_at_the_end_of_the_drain() -> None:
    """C40: at drain_s, with status 1 and the reason."""
    with serving("Deadly", server={"drain_s": 0.5}) as pool, pool.client() as client:
        future = client.submit("deadly", tag=[1], death=[5])
        until(lambda: pool.tally("deadly")["batches"], "the start of the row")
        start = time.monotonic()
        pool.expected_status = 1
        assert pool.stop() == 1
        assert 0.4 < time.monotonic() - start < 20
        assert "stopped with 1 rows under way: the time to drain was up" in pool.last_line
        assert isinstance(future.exception(PATIENCE_S), bp.PoolStopped)


def test_a_stop_that_gives_up_requests_over_http_says_so() -> None:
    with serving("Deadly", server={"drain_s": 0.6}) as pool:
        inputs = [
            {"name": name, "datatype": "INT64", "shape": [1], "data": [value]}
            for name, value in (("tag", 1), ("death", 5))
        ]
        body = json.dumps({"inputs": inputs})
        asking = threading.Thread(target=lambda: found.append(ask(pool, URL, body.encode())))
        found: list[Answer] = []
        asking.start()
        until(lambda: pool.tally("deadly")["batches"], "the start of the row")
        pool.expected_status = 1
        assert pool.stop() == 1
        asking.join(PATIENCE_S)
        assert found[0].refused == (503, "pool_stopped")
        # The front end gives up before the supervisor's time is up, but may take longer to end.
        assert re.search("ERROR stopped with (requests|1 rows) under way", pool.last_line)


def test_a_second_signal_forces_the_end() -> None:
    """C40: SIGTERM twice."""
    with serving("Deadly") as pool, pool.client() as client:
        client.submit("deadly", tag=[1], death=[5])
        until(lambda: pool.tally("deadly")["batches"], "the start of the row")
        pool.signal(signal.SIGTERM)
        until(lambda: "accepted requests get 30 s" in pool.log, "the first signal")
        pool.expected_status = 1
        pool.signal(signal.SIGTERM)
        assert pool.wait_end(20) == 1  # before the 30 s
        assert "SIGTERM again: stopping at once" in pool.log


def kill_group(pool: Pool) -> None:
    pool.expected_status = -signal.SIGKILL
    pool.signal_all(signal.SIGKILL)
    pool.wait_end()


@pytest.mark.parametrize("kill", [kill_group, Pool.end_at_once], ids=["group", "supervisor"])
def test_a_killed_pool_leaves_nothing_and_starts_again(kill: Callable[[Pool], None]) -> None:
    with serving("Affine") as pool, Load(pool) as load:
        kill(pool)
        pool.assert_nothing_left()
        until(lambda: load.lost + load.absent >= 3, "the callers' notice")
        with pool.again("Affine") as again:
            before = load.answered
            until(lambda: load.answered > before + 20, "answers by the next pool")
            again.assert_alive()
            with socket.create_connection(("127.0.0.1", pool.port)) as connection:
                connection.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: pool\r\n\r\n")
                assert connection.recv(4096).startswith(b"HTTP/1.1 200")


@contextmanager
def worker_gone(pool: Pool) -> Iterator[None]:
    (worker,) = pool.pids("worker")
    os.kill(worker, signal.SIGKILL)
    yield
    until(lambda: pool.pids("worker") not in ([], [worker]), "another worker")
    until(lambda: pool.status()["models"]["affine"]["workers"] == "1/1", "its readiness")


def test_nothing_depends_on_names_in_dev_shm() -> None:
    """C59: logind removes a user's entries there when the last session ends: there are none."""
    with serving("Affine") as pool, pool.client() as client:
        client.infer("affine", x=ONES)
        for name in os.listdir("/dev/shm"):
            if name.startswith(("batchpool", "sem.batchpool")):
                os.unlink(f"/dev/shm/{name}")
        with worker_gone(pool):
            pass
        for path in ("/v2/health/ready", "/v2/models/affine/ready", "/metrics"):
            assert ask(pool, path).status == 200
        answer = ask(pool, "/v2/models/affine/infer", b'{"x": [1, 1, 1, 1]}')
        assert answer.object == {"y": [3, 3, 3, 3]}
        assert client.infer("affine", x=ONES)["y"].tolist() == [[3] * 4]
        with pool.client() as other:
            assert other.infer("affine", x=ONES)["y"].tolist() == [[3] * 4]
        paths = set()
        for pid in pool.processes():
            with suppress(FileNotFoundError):  # a child that closed what the last client had
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    with suppress(FileNotFoundError):  # those of the client that has just left
                        paths.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        shm = {path for path in paths if path.startswith("/dev/shm")}
        assert all(path.endswith("(deleted)") for path in shm)
