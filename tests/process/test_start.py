"""Starting: ready when it is true and not before; what cannot start says so once and goes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from batchpool.shm.segment import remove_leftovers
from tests.process.pool_under_test import (
    PATIENCE_S,
    ROOT,
    Pool,
    command,
    in_small_shm,
    serving,
    shm_names,
    started,
    until,
)

ONES = np.ones((1, 4), np.float32)


def assert_refused(pool: Pool, *sentences: str, status: int = 1) -> None:
    """The pool ends by itself with one clear last line and leaves nothing."""
    pool.expected_status = status
    assert pool.wait_end() == status
    for sentence in sentences:
        assert sentence in pool.last_line
    assert pool.last_line.startswith("batchpool: error: ")
    assert pool.log.count("batchpool: error: ") == 1
    assert "INFO ready" not in pool.log
    pool.assert_nothing_left()
    assert not os.path.exists(pool.socket) or pool.socket_is_anothers


@pytest.mark.parametrize(
    ("model", "sentences"),
    [
        (
            "LoadRaises",
            ["model 'loadraises'", "worker 0", "weights.bin is not there", "models.py:"],
        ),
        ("LoadExits", ["model 'loadexits'", "ended with exit status 3 while loading"]),
        (
            "WarmUpFails",
            [
                "model 'warmupfails'",
                "'y' has dtype float64; float32 was expected",
                "it was the warm-up",
            ],
        ),
        ({"import": "OneLoadFails", "workers_per_device": 2}, ["only one of us fits"]),
        ("Nothing", ["tests.process.models:Nothing", "has no 'Nothing'"]),
        ("tests.process.nowhere:Model", ["there is no module 'tests.process.nowhere' in "]),
        ("tests.process.models:DEATHS", ["not a subclass of batchpool.Model"]),
    ],
    ids=str,
)
def test_a_model_that_cannot_be_served_ends_the_start(model: Any, sentences: list[str]) -> None:
    """C37: load raises, exits or finds nothing; one worker of two fails."""
    with started(model) as pool:
        pool.tracebacks_expected = True  # of the user's code, for its author
        assert_refused(pool, *sentences)


@pytest.mark.long
def test_a_model_that_loads_for_ever_ends_the_start() -> None:
    """C37: a hang ends by load_timeout_s."""
    with started("LoadHangs", server={"load_timeout_s": 3.0}) as pool:
        assert_refused(pool, "model 'loadhangs'", "did not load within load_timeout_s = 3")


def test_a_device_that_is_not_there_ends_the_start() -> None:
    """C37: told by its number."""
    torch = {"import": "tests.process.torch_models:Threads", "devices": [99]}
    with started(torch) as pool:
        assert_refused(pool, "tests.process.torch_models:Threads: devices = [99]")
    with started({"import": "Affine", "devices": [0]}) as pool:
        assert_refused(pool, 'expected "auto" or "cpu"')  # whether the machine has a GPU or not


@pytest.mark.parametrize(
    ("server", "model", "sentence"),
    [
        ({"prot": 1}, {}, 'unknown key prot = 1; did you mean "port"?'),
        ({}, {"max_batch": 0}, "max_batch = 0: expected a whole number of rows from 1"),
        ({"max_batch": 4}, {}, "unknown key max_batch = 4; it belongs into a table [[model]]"),
    ],
)
def test_a_wrong_configuration_is_a_usage_error(
    server: dict[str, Any], model: dict[str, Any], sentence: str
) -> None:
    """C37: exit status 2 and one line."""
    with started({"import": "Affine", **model}, server=server) as pool:
        assert_refused(pool, "pool.toml: [", sentence, status=2)


def test_a_port_that_anything_else_has_is_refused() -> None:
    """C37: one line, and nothing left."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with started("Affine", port=port) as pool:
            assert_refused(pool, f"port {port} on 127.0.0.1 is taken")


def test_a_second_pool_is_refused_and_the_first_goes_on() -> None:
    """C46: names set equal by hand."""
    with serving("Affine") as first, first.client() as client:
        with started("Affine", port=first.port) as second:
            assert_refused(second, f"port {first.port} on 127.0.0.1 is taken")
        with started("Affine", server={"socket": first.socket}) as third:
            third.socket_is_anothers = True
            assert_refused(third, f"another pool serves with the control socket {first.socket}")
        # Both by their defaults, as two operators would start them.
        with started("Affine", port=first.port, server={"socket": first.socket}) as fourth:
            fourth.socket_is_anothers = True
            assert_refused(fourth, f"port {first.port} on 127.0.0.1 is taken")
        assert client.infer("affine", x=ONES)["y"].tolist() == [[3] * 4]
        check = subprocess.run(
            command("check", str(first.folder / "pool.toml")),
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (check.returncode, check.stderr) == (0, "")
        assert "\n  port           in use (by a running batchpool, pid " in check.stdout
        with first.client() as other:
            assert other.infer("affine", x=ONES)["y"].tolist() == [[3] * 4]


def test_what_is_at_the_sockets_place_and_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("not a socket")
    with started("Affine", server={"socket": str(path)}) as pool:
        pool.socket_is_anothers = True
        assert_refused(pool, f"{path} exists and is not a socket; it is left alone")
    assert path.read_text() == "not a socket"


@pytest.mark.long
def test_two_pools_on_one_host_do_not_touch_each_other() -> None:
    models = {"import": "Affine"}, {"import": "Special", "name": "affine"}
    with started(models[0]) as one, started(models[1]) as other:
        one.wait_ready()
        other.wait_ready()
        with one.client() as ones, other.client() as others:
            for _ in range(20):
                assert ones.infer("affine", x=ONES)["y"].tolist() == [[3] * 4]
                assert others.infer("affine", x=ONES[:, :3])["y"].tolist() == [[1] * 3]
            other.end_at_once()
            one.assert_alive()
            assert ones.infer("affine", x=ONES)["y"].tolist() == [[3] * 4]
            with one.client() as another:
                assert another.infer("affine", x=ONES)["y"].tolist() == [[3] * 4]


def test_ready_is_not_said_before_a_worker_is_warm() -> None:
    """C38: and early calls of local programs are refused at once."""
    with started("LoadWaits") as pool:
        client = until(lambda: attached(pool), "a client before the model is loaded")
        with client:
            assert pool.status()["state"] == "starting"
            assert pool.status()["models"]["loadwaits"]["ready"] is False
            for _ in range(3):
                start = time.monotonic()
                with pytest.raises(bp.NotReady, match=r"no worker serves model 'loadwaits'"):
                    client.infer("loadwaits", x=ONES)
                with pytest.raises(bp.NotReady):
                    client.submit("loadwaits", x=ONES)
                assert time.monotonic() - start < 20, "it does not wait for request_timeout_s"
            (pool.notes / "load").touch()
            pool.wait_ready()
            assert client.infer("loadwaits", x=ONES)["y"].tolist() == [[3] * 4]
            assert pool.status()["state"] == "ready"


def attached(pool: Pool) -> bp.Client | None:
    with contextlib.suppress(bp.PoolStopped):
        return pool.client()
    return None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_start_can_be_ended(number: signal.Signals) -> None:
    with started("LoadWaits") as pool:
        until(lambda: attached(pool), "the control socket").close()
        pool.signal_all(number)
        assert pool.wait_end() == 0
        assert "Traceback" not in pool.log


# -- memory -----------------------------------------------------------------------------


@pytest.mark.long
def test_too_little_memory_is_refused_in_numbers() -> None:
    small_shm = in_small_shm()
    big = {"import": "Big", "max_batch": 8, "slots": 64}
    with started(big, wrapper=small_shm) as pool:
        assert_refused(
            pool, "shared memory: needs 129.", "MiB, but only 16.0 MiB are available",
            "(limit: /dev/shm size)", "lower slots, max_batch or frontends",
        )  # fmt: skip
    fits = {**big, "max_batch": 4, "slots": 4}
    with serving(fits, wrapper=small_shm) as pool, pool.client() as client:
        # A local client's lane is no part of /dev/shm.
        x = np.random.default_rng(0).random((50, 262144), np.float32)
        np.testing.assert_array_equal(client.infer("big", x=x)["y"], x)


MAKER = """
import os, signal, sys
from batchpool.core.layout.segments import state_page_layout
from batchpool.shm import segment
import posix_ipc

class Unlucky(posix_ipc.SharedMemory):
    def unlink(self):
        os.kill(os.getpid(), signal.SIGKILL)

posix_ipc.SharedMemory = Unlucky
segment.create(state_page_layout(), sealed=False)
"""


def test_a_segment_left_by_a_kill_is_removed_by_the_next_start() -> None:
    before = shm_names()
    ended = subprocess.run([sys.executable, "-c", MAKER], check=False, timeout=PATIENCE_S)
    assert ended.returncode == -signal.SIGKILL
    (left,) = shm_names() - before
    assert left.startswith("batchpool.")
    with serving("Affine") as pool:
        assert left not in shm_names()
        assert "removed 1 segments of dead pools" in pool.log
    assert remove_leftovers() == []


def test_the_segments_of_a_living_process_stay() -> None:
    maker = MAKER.replace("os.kill(os.getpid(), signal.SIGKILL)", "print(flush=True), input()")
    with subprocess.Popen(
        [sys.executable, "-c", maker], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdin
        process.stdout.readline()
        name = next(n for n in shm_names() if n.split(".")[1] == str(process.pid))
        assert remove_leftovers() == []
        assert name in shm_names()
        threading.Timer(0, process.kill).start()
        process.wait(PATIENCE_S)
        assert remove_leftovers() == [name]
