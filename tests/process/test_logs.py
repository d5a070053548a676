"""The log of a whole pool: every line parses, and a request can be followed through it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

import batchpool as bp
from batchpool.core.text.log_limits import FIRST
from tests.ports import free_port
from tests.process.models import FAULTS
from tests.process.pool_under_test import ROOT, command, serving, until
from tests.process.web import Answer, ask

INFER = "/v2/models/faulty/infer"
BAD_REQUESTS = 30


def body(fault: int = 0) -> bytes:
    tensors = {"x": np.ones(1, "f4"), "fault": np.array([fault], "i8")}
    names = {"float32": "FP32", "int64": "INT64"}
    inputs = {
        name: {"dtype": names[array.dtype.name], "shape": [1], "data": array.tobytes()}
        for name, array in tensors.items()
    }
    packed: bytes = msgpack.packb({"inputs": inputs})
    return packed


def test_a_model_error_can_be_followed_from_the_answer_to_the_worker() -> None:
    """And whatever callers and models do, each line that any process of the pool writes is one
    JSON object."""
    server = {"frontends": 2, "log_format": "json", "access_log": "all"}
    with serving({"import": "Faulty", "attempts": 1}, server=server) as pool:
        pool.tracebacks_expected = True

        def infer(fault: int, **headers: str) -> Answer:
            fields = {name.replace("_", "-"): value for name, value in headers.items()}
            fields["Content-Type"] = "application/msgpack"
            return ask(pool, INFER, body(fault), fields)

        assert infer(0, X_Request_Id="good-1").headers["x-request-id"] == "good-1"
        failed = infer(FAULTS["raises"])
        assert failed.refused == (500, "model_error")
        name = failed.headers["x-request-id"]
        forged = infer(0, X_Request_Id='x"} {"level": "critical')
        assert ask(pool, "/nowhere/%1b[2J%0aERROR").refused == (404, "not_found")
        for i in range(BAD_REQUESTS):  # good ones between, or the worker is replaced
            assert infer(FAULTS["unspeakable"], X_Request_Id=f"bad-{i}").status == 500
            assert infer(0).status == 200
        (worker,) = pool.pids("worker")
        os.kill(worker, signal.SIGKILL)
        until(lambda: pool.pids("worker") not in ([], [worker]), "another worker")
        until(lambda: infer(0).status == 200, "it serves")
        again = infer(FAULTS["raises"]).headers["x-request-id"]
        (successor,) = pool.pids("worker")
        pool.stop()
        lines: list[dict[str, Any]] = [json.loads(line) for line in pool.log.splitlines()]

    assert {line["role"] for line in lines} == {"supervisor", "frontend", "worker"}
    assert all(line["message"] and line["post"] and line["pid"] for line in lines)
    access = [line for line in lines if line["logger"] == "batchpool.access"]
    of_request = [line for line in access if line["request_id"] == name]
    assert [(line["status"], line["code"], line["rows"]) for line in of_request] == [
        (500, "model_error", 1)
    ]
    (told,) = [
        line
        for line in lines
        if line["logger"] == "batchpool.frontend" and line.get("request_id") == name
    ]
    assert (told["model"], told["error"]) == ("faulty", "ValueError: this row is bad")
    (found,) = [
        line
        for line in lines
        if line["role"] == "worker"
        and (line.get("batch"), line["pid"]) == (told["batch"], told["worker_pid"])
    ]
    assert found["post"] == "worker 0 of faulty"
    assert found["worker"] == told["worker"] == 0, "as status and metrics call it"
    assert found["worker_pid"] == worker
    assert "raise raised[fault]" in found["exception"]

    # its successor has its place and a pid of its own
    (later,) = [
        line
        for line in lines
        if line["logger"] == "batchpool.frontend" and line.get("request_id") == again
    ]
    assert (later["worker"], later["worker_pid"]) == (0, successor)

    # every request is in the access log, once, and nobody's text forged a line
    names = [line["request_id"] for line in access]
    assert len(set(names)) == len(names)
    assert {f"bad-{i}" for i in range(BAD_REQUESTS)} <= set(names)
    assert forged.headers["x-request-id"] in names
    assert all(line["level"] != "critical" for line in lines)
    # the same failure again and again is said a few times, then counted
    by_worker = [line for line in lines if "Unspeakable" in line.get("error", "")]
    spoken = [line for line in by_worker if line["role"] == "worker" and "repeats" not in line]
    assert FIRST <= len(spoken) < BAD_REQUESTS
    assert [bool(line.get("exception")) for line in spoken][:FIRST] == [True] + [False] * 4
    # the supervisor tells of the worker's end
    ends = [line["message"] for line in lines if line["role"] == "supervisor"]
    assert any(f"(pid {worker})" in text and "SIGKILL" in text for text in ends)


def test_a_model_that_configures_logging_silences_nobody_but_itself() -> None:
    model = {"import": "tests.process.ending_models:Silencer", "attempts": 1}
    with serving(model) as pool, pool.client() as client:
        pool.tracebacks_expected = True
        with pytest.raises(bp.ModelError):
            client.infer("silencer", tag=[1], seconds=[0.0])
        (pid,) = pool.pids("worker")
        assert pool.stop() == 0
        lines = pool.log.splitlines()
    own = [line.partition(f" worker 0 of silencer[{pid}] ")[2] for line in lines]
    batches = "a batch of 1 rows failed: ValueError: this row is bad"
    assert [line.partition(" rows=")[0].partition(" model=")[0] for line in own if line] == [
        f"WARNING {batches}",
        "ERROR unload of the model failed: RuntimeError: nothing to put away",
    ]
    assert [line for line in lines if "SILENCER" in line] == ["SILENCER loaded", "SILENCER infer"]


def test_a_start_that_fails_says_why_in_the_same_form(tmp_path: Path) -> None:
    words = ["--model", "nowhere_at_all:Model", "--port", str(free_port()), "--log-format", "json"]
    socket = ["--socket", str(tmp_path / "s")]
    done = subprocess.run(
        command("serve", *words, *socket), cwd=ROOT, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 1
    *_, last = [json.loads(line) for line in done.stderr.splitlines()]
    assert (last["level"], last["role"]) == ("error", "supervisor")
    assert "nowhere_at_all" in last["message"]


def test_a_pool_whose_log_nobody_reads_serves_on() -> None:
    """A broken pipe at stderr costs the lines, never an answer or the exit status."""
    reads, writes = os.pipe()
    os.close(reads)
    wrapper = ["bash", "-c", f'exec "$0" "$@" 2>&{writes}']
    server = {"access_log": "all"}
    try:
        model = {"import": "Faulty", "attempts": 1}
        with serving(model, server=server, wrapper=wrapper, fds=[writes]) as pool:
            headers = {"Content-Type": "application/msgpack"}
            for fault, status in ((0, 200), (FAULTS["raises"], 500), (0, 200)):
                assert ask(pool, INFER, body(fault), headers).status == status
            for kind in ("worker", "batcher", "frontend"):
                (pid,) = pool.pids(kind)
                os.kill(pid, signal.SIGKILL)
                until(
                    lambda kind=kind, pid=pid: pool.pids(kind) not in ([], [pid]), f"a new {kind}"
                )
            pool.wait_ready()
            until(lambda: ask(pool, INFER, body(), headers).status == 200, "it serves again")
            assert pool.stop() == 0
            assert pool.log == ""
    finally:
        os.close(writes)
