"""Reloads that change what a model is, add one or take one away: under load, on every road, with
deaths in the middle. No request fails and no row is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from batchpool.client.control import ask_batches
from tests.process.migrated_models import Steady
from tests.process.pool_under_test import PATIENCE_S, ROOT, Pool, process_state, serving, until
from tests.process.test_reload import begin, configure, end, write
from tests.process.web import ask

MODELS = "tests.process.migrated_models"
SHAPED: dict[str, Any] = {"import": f"{MODELS}:Shaped", "slots": 128}
GUEST: dict[str, Any] = {"import": f"{MODELS}:Guest", "slots": 64}
SERVER: dict[str, Any] = {"client_slots": 128, "drain_s": 3}
# One line in, one line out: what a local program does when it is told to.
PROGRAM = """
import sys, batchpool as bp
with bp.Client(sys.argv[1]) as pool:
    future = None
    for line in sys.stdin:
        if line == "submit\\n":
            future = pool.submit("shaped", x=[[21, 0, 0]])
            print("submitted", flush=True)
        else:
            found = future.result(60) if future else pool.infer("shaped", x=[[21, 0, 0]])
            future = None
            print(*(found[name][0] for name in ("y", "version", "most")), flush=True)
"""


class Program:
    """A local program of its own."""

    def __init__(self, pool: Pool) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, pool.socket],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def tell(self, word: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(word, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def stop(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)
        until(lambda: process_state(self.process.pid)[0] == "T", "its stop")

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


@contextmanager
def program(pool: Pool) -> Iterator[Program]:
    running = Program(pool)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()


class Upload:
    """A request whose body stops in the middle."""

    def __init__(self, pool: Pool, model: str, length: int) -> None:
        x = {"name": "x", "shape": [1, length], "datatype": "INT64", "data": [7] * length}
        body = json.dumps({"inputs": [x]}).encode()
        head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}"
        self._sock = socket.create_connection(("127.0.0.1", pool.port), PATIENCE_S)
        self._sock.sendall(head.encode() + b"\r\n\r\n" + body[:10])
        self._rest = body[10:]

    def finish(self) -> int:
        """Send the rest; the status of the answer."""
        self._sock.sendall(self._rest)
        status = int(self._sock.recv(4096).split()[1])
        self._sock.close()
        return status


def counted(pool: Pool) -> dict[str, float]:
    """Every counter that says of a model of ours how many rows ended, and gauges of workers."""
    lines = ask(pool, "/metrics").body.decode().splitlines()
    names = ("batchpool_rows_ended_total", "batchpool_http_requests_total", "batchpool_model_work")
    pairs = [line.rsplit(" ", 1) for line in lines if line.startswith(names)]
    return {name: float(value) for name, value in pairs}


def settled(pool: Pool) -> None:
    until(lambda: pool.status()["reload"] is None, "the end of what was replaced")


def done(pool: Pool) -> str:
    """A reload that works; what it says."""
    status, line = end(begin(pool))
    assert status == 0, line + pool.log
    return line


@pytest.mark.long
def test_models_change_come_and_go_under_load() -> None:
    with serving(SHAPED, server=SERVER) as pool, Steady(pool) as steady, pool.client() as own:
        pool.tracebacks_expected = True  # of the model that does not load

        # Other slots, and another model.
        first = counted(pool)
        (front,) = pool.pids("frontend")
        segments_before = segments(front)
        write(pool, "version", 2)
        configure(pool, {**SHAPED, "slots": 256}, GUEST, **SERVER)
        line = done(pool)
        assert "slots of shaped: 128 -> 256; model 'guest' is new" in line
        assert list(own.models()) == ["shaped", "guest"]
        assert own.infer("guest", x=np.ones((1, 4), np.int64))["most"][0] == 4
        steady.await_all(2, 4)
        settled(pool)
        (http,) = (lane for lane in pool.status()["lanes"] if lane["owner"].startswith("frontend")
                   and lane["model"] == "shaped")  # fmt: skip
        assert http["slots"] == 256

        # Other tensors; a program is stopped with a row under way, and the batcher dies.
        with program(pool) as stopped:
            assert stopped.tell("infer") == "42 2 4"
            write(pool, "hold", "")
            assert stopped.tell("submit") == "submitted"
            stopped.stop()
            (pool.notes / "hold").unlink()
            uploads = [Upload(pool, "shaped", 3), Upload(pool, "guest", 4)]
            for name, number in (("version", 3), ("shape", 6), ("guest", 6)):
                write(pool, name, number)
            assert "other tensors of shaped; other tensors of guest" in done(pool)
            assert "old lane" in pool.status()["reload"], "of the program that is stopped"
            (batcher,) = pool.pids("batcher")
            os.kill(batcher, signal.SIGKILL)
            assert uploads[0].finish() == 200
            assert uploads[1].finish() == 400, "four elements are too few now"
            steady.await_all(3, 6)
            with pytest.raises(
                bp.InvalidRequest, match=r"has shape \[1, 4\]; \[n, 6\] was expected"
            ):
                own.infer("guest", x=np.ones((1, 4), np.int64))
            assert own.infer("guest", x=np.ones((1, 6), np.int64))["most"][0] == 6
            assert ask(pool, "/v2/models/guest").object["inputs"][0]["shape"] == [-1, 6]
            settled(pool)
            stopped.go_on()
            assert stopped.tell("result") == "42 2 4", "it was answered while it was stopped"
            assert stopped.tell("infer") == "42 3 6"
        assert "has taken over" in pool.log
        assert "did not move to its new lane in time" in pool.log

        # One that does not load undoes all of it.
        gone = f"(pid {stopped.process.pid})"
        until(lambda: gone not in str(pool.status()["lanes"]), "the end of the program's lanes")
        before = {(lane["owner"], lane["lane"]) for lane in pool.status()["lanes"]}
        write(pool, "broken", "")
        configure(pool, SHAPED, **SERVER)
        status, line = end(begin(pool))
        assert (status, "the weights are broken" in line) == (1, True), line
        now = {(lane["owner"], lane["lane"]) for lane in pool.status()["lanes"]}
        assert now == before
        assert own.infer("guest", x=np.ones((1, 6), np.int64))["version"][0] == 3
        (pool.notes / "broken").unlink()

        # A model is taken away.
        late = Upload(pool, "guest", 6)
        configure(pool, {**SHAPED, "slots": 256}, **SERVER)
        assert "model 'guest' is removed" in done(pool)
        assert late.finish() == 404
        assert ask(pool, "/v2/models/guest").refused == (404, "not_found")
        with pytest.raises(bp.NotFound, match="the pool has 'shaped'"):
            own.infer("guest", x=np.ones((1, 6), np.int64))
        steady.await_more()
        settled(pool)

        # What was counted goes on, and nothing is left of what is gone.
        last = counted(pool)
        assert all(last[name] >= value for name, value in first.items())
        assert [name for name in last if "model_workers" in name] == [
            'batchpool_model_workers{model="shaped"}'
        ]
        status_now = pool.status()
        assert list(status_now["models"]) == ["shaped"]
        assert status_now["models"]["shaped"]["workers"] == "1/1"
        assert {lane["model"] for lane in status_now["lanes"]} == {"shaped"}
        assert {flight["model"] for flight in ask_batches(pool.socket, 500)} <= {"shaped", "guest"}
        assert len(pool.pids("worker")) == 1
        until(lambda: segments(front) == segments_before, "the unmapping of what moved")
    assert steady.failures == []


def segments(pid: int) -> int:
    """The number of the pool's segments that a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count("/dev/shm/batchpool.")


@pytest.mark.long
def test_a_worker_that_starts_again_does_not_run_other_code_than_is_served() -> None:
    with serving(SHAPED, server=SERVER) as pool, pool.client() as own:
        pool.tracebacks_expected = True
        assert own.infer("shaped", x=np.ones((1, 3), np.int64))["y"][0] == 2
        write(pool, "shape", 9)
        (worker,) = pool.pids("worker")
        os.kill(worker, signal.SIGKILL)
        until(lambda: "declares other tensors than model 'shaped'" in pool.log, "its refusal")
        until(
            lambda: ask(pool, "/v2/health/ready").status == 503, "the end of the time to come back"
        )
        write(pool, "shape", 4)
        until(lambda: pool.status()["models"]["shaped"]["workers"] == "1/1", "the right code")
        assert own.infer("shaped", x=np.ones((1, 3), np.int64))["y"][0] == 2
