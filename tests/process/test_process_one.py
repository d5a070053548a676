"""A pool that is process 1 of its container: it ends in order when it is told, and reaps orphans.

The kernel gives process 1 neither the default action of a signal nor a parent that would reap what
others leave.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.process.pool_under_test import ROOT, command, is_alive, process_state, until

# --kill-child: whatever ends this test takes the pool with it.
CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
ORPHAN = "import os\nif os.fork():\n    os._exit(0)\nos.read(0, 1)"


@pytest.fixture
def container(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, Path]]:
    """(the container, its port, the log) of a pool in namespaces of processes and mounts."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("unshare and nsenter are not installed")
    tried = subprocess.run([*CONTAINER, "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"no namespace of processes here: {tried.stderr.decode().strip()}")
    port, log = free_port(), tmp_path / "log"
    words = [
        "serve", "--model", "tests.process.models:Probe", "--devices", "cpu", "--port", str(port),
        "--socket", str(tmp_path / "s"), "--frontends", "1",
    ]  # fmt: skip
    with open(log, "wb") as stream:
        process = subprocess.Popen(
            [*CONTAINER, *command(*words)], cwd=ROOT, stdin=subprocess.DEVNULL,
            stdout=stream, stderr=stream,
        )  # fmt: skip
    try:
        until(lambda: process.poll() is not None or is_ready(port), "the pool's readiness")
        assert process.poll() is None, log.read_text()
        yield process, port, log
    finally:
        process.kill()
        process.wait()


def is_ready(port: int) -> bool:
    try:
        return ask(port, "GET", "/v2/health/ready")[0] == 200
    except OSError:
        return False


def ask(port: int, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def children_of(pid: int) -> list[int]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [child for child in pids if process_state(child)[1] == pid]


def row(tag: int, seconds: float) -> dict[str, Any]:
    return {
        "inputs": [
            {"name": "tag", "shape": [1], "datatype": "INT64", "data": [tag]},
            {"name": "seconds", "shape": [1], "datatype": "FP32", "data": [seconds]},
        ]
    }


def in_flight(port: int) -> float:
    _, text = ask(port, "GET", "/metrics")
    for line in text.decode().splitlines():
        if line.startswith("batchpool_rows_admitted_total") and 'model="probe"' in line:
            return float(line.rpartition(" ")[2])
    return 0.0


def test_process_one_reaps_orphans_and_ends_in_order(
    container: tuple[subprocess.Popen[bytes], int, Path],
) -> None:
    process, port, log = container
    (pool,) = children_of(process.pid)
    assert Path(f"/proc/{pool}/status").read_text().split("NSpid:")[1].split()[:2][1] == "1"
    own = set(children_of(pool))

    waits, goes_on = os.pipe()
    enter = ["nsenter", "--target", str(pool), "--pid", "--mount"]
    subprocess.run([*enter, sys.executable, "-c", ORPHAN], stdin=waits, check=True, timeout=60)
    (orphan,) = until(lambda: set(children_of(pool)) - own, "the orphan's adoption")
    os.close(goes_on)  # it ends
    os.close(waits)
    until(lambda: process_state(orphan) == ("", 0, 0), "the end of the orphan without a zombie")

    answers: list[tuple[int, bytes]] = []
    slow = threading.Thread(
        target=lambda: answers.append(ask(port, "POST", "/v2/models/probe/infer", row(7, 0.5)))
    )
    slow.start()
    until(lambda: in_flight(port) > 0, "a request under way")
    os.kill(pool, signal.SIGTERM)
    assert process.wait(60) == 0, log.read_text()
    slow.join(60)
    ((status, body),) = answers
    assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [7])
    assert not [pid for pid in own if is_alive(pid)]
    assert "Traceback" not in log.read_text()
