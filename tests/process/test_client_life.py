"""Starts and ends of clients: closing, forking, scripts, permissions, a pool that restarts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from batchpool.control.channel import Channel, pair
from batchpool.core.layout.segments import VERSION
from tests.process.gates import opened_at_last
from tests.process.pool_under_test import PATIENCE_S, ROOT, Pool, serving, until
from tests.unit.control.packets import receive_form, send_form

ONES = np.ones((1, 4), np.float32)
PREAMBLE = """
import sys, os, signal
import numpy as np
import batchpool as bp
ONES = np.ones((1, 4), np.float32)
SOCKET = sys.argv[1]
"""


def run_script(folder: Path, body: str, *arguments: str, first: str = "", **more: Any) -> Any:
    """Run a script that uses the client; returns the finished process with its texts.

    first: code that comes before every import.
    """
    path = folder / "script.py"
    path.write_text(first + PREAMBLE + body)
    return subprocess.run(
        [sys.executable, "-W", "error", str(path), *arguments],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False, **more,
    )  # fmt: skip


def infer_ones(client: bp.Client) -> Any:
    return client.infer("affine", x=ONES)["y"].tolist()


# -- closing ----------------------------------------------------------------------------


def test_results_outlive_their_client(everyday: Pool) -> None:
    """C48: close twice; later use is a clear error."""
    with everyday.client() as client:
        found = client.infer("affine", x=ONES)["y"]
    np.testing.assert_array_equal(found, 2 * ONES + 1)
    found += 1  # the caller's own
    client.close()
    client.close()
    for use in (infer_ones, lambda c: c.submit("affine", x=ONES), bp.Client.models):
        with pytest.raises(bp.PoolStopped, match=r"closed"):
            use(client)


def test_an_exception_inside_the_block_is_the_one_that_comes_out(everyday: Pool) -> None:
    """C48: nothing hides it."""
    with opened_at_last(everyday, 201):
        with pytest.raises(ZeroDivisionError), everyday.client() as client:
            future = client.submit("slow", tag=[1], seconds=[0.0], gate=[201])
            _ = 1 / 0
        assert isinstance(future.exception(PATIENCE_S), bp.PoolStopped)


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("client.close()", 0),
        ("", 0),
        ("sys.exit(7)", 7),
        ("future = client.submit('slow', tag=[1], seconds=[0.3])", 0),
        ("client.close(); del client", 0),
        ("import gc; del client; gc.collect()", 0),
        ("client.submit('affine', x=ONES).add_done_callback(lambda f: client.close())", 0),
        ("global_results = [client.infer('affine', x=ONES) for _ in range(5)]", 0),
    ],
)
def test_a_script_ends_quietly_however_it_ends(
    everyday: Pool, tmp_path: Path, ending: str, status: int
) -> None:
    """C43, C48: no warning, no traceback, its own exit status, and the pool serves on."""
    body = f"""
client = bp.Client(SOCKET)
y = client.infer("affine", x=ONES)["y"]
late = client.submit("affine", x=ONES)
assert late.result(60)["y"].tolist() == y.tolist() == [[3.0] * 4]
{ending}
"""
    ended = run_script(tmp_path, body, everyday.socket)
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "", "")


# -- fork and spawn ---------------------------------------------------------------------


def in_child(work: Any) -> bytes:
    """Run work() in a forked child; what it wrote, in time."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.write(writer, repr(work()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    killer = threading.Timer(PATIENCE_S, os.kill, (pid, signal.SIGKILL))
    killer.start()
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    killer.cancel()
    assert os.waitpid(pid, 0)[1] == 0, text
    return text


def error_of(work: Any) -> str:
    try:
        return f"no error: {work()}"
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_gets_a_clear_error_and_may_open_its_own(everyday: Pool) -> None:
    """C56: the parent's calls are unharmed."""
    with everyday.client() as client:
        infer_ones(client)
        busy = threading.Thread(
            target=lambda: [infer_ones(client) for _ in range(400)], name="keeps the lock moving"
        )
        waiting = client.submit("slow", tag=[1], seconds=[0.2])
        busy.start()
        for use in (infer_ones, lambda c: c.submit("affine", x=ONES), bp.Client.models):
            text = in_child(lambda use=use: error_of(lambda: use(client)))
            assert b"PoolStopped" in text
            assert b"after a fork the child must open its own bp.Client" in text

        def own() -> Any:
            waiting.cancel()
            client.close()
            with everyday.client() as mine:
                return infer_ones(mine)

        for _ in range(5):
            assert in_child(own) == b"[[3.0, 3.0, 3.0, 3.0]]"
        busy.join()
        assert infer_ones(client) == [[3, 3, 3, 3]]
        assert waiting.result(PATIENCE_S)["tag"].tolist() == [1]


def spawned(socket: str, tag: int) -> int:
    with bp.Client(socket) as client:
        return int(client.infer("probe", tag=[tag], seconds=[0.0])["tag"][0])


def test_spawned_processes_open_their_own(everyday: Pool) -> None:
    """C56: spawn beside a parent that goes on."""
    with everyday.client() as client, multiprocessing.get_context("spawn").Pool(2) as processes:
        calls = processes.starmap_async(spawned, [(everyday.socket, tag) for tag in range(8)])
        assert infer_ones(client) == [[3, 3, 3, 3]]
        assert calls.get(PATIENCE_S) == list(range(8))
        processes.close()
        processes.join()  # they end by themselves; killed ones may leave a lock of theirs behind


# -- scripts without a __main__ guard -----------------------------------------------------


UNGUARDED = (
    PREAMBLE
    + """
class Scale(bp.Model):
    framework = "numpy"
    inputs = outputs = [bp.Tensor("x", "float32", (4,))]
    def infer(self, batch): return {"x": batch["x"]}

print(bp.Client(SOCKET).infer("affine", x=ONES)["y"].tolist())
"""
)


@pytest.mark.parametrize("road", ["file", "-c", "stdin", "-m"])
def test_a_plain_script_without_a_guard_works(everyday: Pool, tmp_path: Path, road: str) -> None:
    """C58: as a file, with -c, from stdin and with -m."""
    (tmp_path / "plain.py").write_text(UNGUARDED)
    given = {"file": [str(tmp_path / "plain.py")], "-c": ["-c", UNGUARDED], "stdin": ["-"],
             "-m": ["-m", "plain"]}[road]  # fmt: skip
    ended = subprocess.run(
        [sys.executable, *given, everyday.socket],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        input=UNGUARDED if road == "stdin" else "", timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[[3.0, 3.0, 3.0, 3.0]]\n", "")


def test_serving_a_model_from_such_a_script_fails_once_and_says_where(tmp_path: Path) -> None:
    """C58: one line with the script's own."""
    script = UNGUARDED.replace("sys.argv[1]", "'/nowhere/pool.sock'")
    (tmp_path / "plain.py").write_text(script)
    ended = subprocess.run(
        [sys.executable, "-m", "batchpool", "check", "--model", "plain:Scale"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    (line,) = ended.stderr.strip().splitlines()
    assert "plain:Scale" in line
    assert "no pool listens at /nowhere/pool.sock" in line
    number = next(i for i, row in enumerate(script.splitlines(), 1) if row.startswith("print("))
    assert f"plain.py:{number})" in line


# -- a pool that comes and goes ---------------------------------------------------------


def test_a_client_started_before_its_pool_says_so(tmp_path: Path) -> None:
    """C57: no wait for what is not there."""
    path = str(tmp_path / "pool.sock")
    with pytest.raises(bp.PoolStopped, match=r"no such socket; is the server running") as caught:
        bp.Client(path)
    assert path in str(caught.value)


def test_a_pool_killed_under_a_call_and_started_again() -> None:
    """C57: an error at once, and the client works with the next pool."""
    with serving("Probe") as pool, pool.client() as client, pool.client() as idle:
        client.infer("probe", tag=[0], seconds=[0.0])
        idle.infer("probe", tag=[0], seconds=[0.0])
        future = client.submit("probe", tag=[1], seconds=[0.0], gate=[1])  # which nobody opens
        outcome: list[Any] = []
        call = threading.Thread(
            target=lambda: outcome.append(
                error_of(lambda: client.infer("probe", tag=[2], seconds=[0.0]))
            )
        )
        call.start()
        until(lambda: pool.claimed() == 2, "both requests")
        start = time.monotonic()
        pool.end_at_once()
        call.join(PATIENCE_S)
        assert isinstance(future.exception(PATIENCE_S), bp.PoolStopped)
        assert time.monotonic() - start < 10
        assert outcome[0].startswith("PoolStopped: the session with the pool at")
        for _ in range(2):
            with pytest.raises(bp.PoolStopped, match=r"left over from one that has stopped"):
                client.infer("probe", tag=[3], seconds=[0.0])
        with pool.again("Probe", "Affine") as again:
            for either in (client, idle):  # one has noticed the end, the other has not
                assert either.infer("probe", tag=[4], seconds=[0.0])["tag"].tolist() == [4]
                assert either.submit("probe", tag=[5], seconds=[0.0]).result(PATIENCE_S)["tag"] == [
                    5
                ]
            assert infer_ones(client) == [[3, 3, 3, 3]]
            again.stop()
            with pytest.raises(bp.PoolStopped, match=r"no such socket"):
                idle.infer("probe", tag=[6], seconds=[0.0])


def test_a_client_of_another_version_is_told(everyday: Pool) -> None:
    """C57: another layout is refused, not interpreted."""
    import socket

    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(everyday.socket)
    channel, (one, other) = Channel(sock), pair()
    send_form(channel, {"op": "attach", "version": VERSION + 1})
    answer, fds = receive_form(channel)
    assert fds == []
    assert (answer["op"], answer["code"]) == ("error", "invalid_request")
    assert f"layout version {VERSION + 1}, the pool {VERSION}" in answer["error"]
    # One from before the pool made the bells sends a bell of its own.
    send_form(channel, {"op": "attach", "version": 3}, [one.fileno()])
    answer, _ = receive_form(channel)
    assert (answer["op"], answer["code"]) == ("error", "invalid_request")
    assert "install the same one on both sides" in answer["error"]
    for end in (channel, one, other):
        end.close()


def test_more_clients_than_may_attach_are_refused_until_one_leaves() -> None:
    with serving("Affine", server={"max_clients": 2}) as pool:
        with pool.client() as first, pool.client() as second:
            assert infer_ones(first) == infer_ones(second)
            with pytest.raises(bp.Overloaded, match=r"2 local clients .* max_clients = 2"):
                pool.client()
            assert len(pool.lanes()) == 2, "the operator can still ask"
        until(lambda: not pool.lanes(), "the end of both")
        with pool.client() as third:
            assert infer_ones(third) == [[3, 3, 3, 3]]


# -- who may ----------------------------------------------------------------------------


def test_the_socket_is_its_owners_alone(everyday: Pool) -> None:
    """C49: nobody else may connect by default."""
    assert stat.S_IMODE(os.stat(everyday.socket).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(everyday.socket + ".lock").st_mode) == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_another_user_is_told_why_it_may_not_connect(everyday: Pool) -> None:
    """C49: the error names the socket."""
    os.chmod(everyday.folder, 0o755)
    body = PREAMBLE + "bp.Client; os.setgid(65534); os.setuid(65534); bp.Client(SOCKET)"
    ended = subprocess.run(
        [sys.executable, "-c", body, everyday.socket],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    sentence = f"no permission to connect to the pool at {everyday.socket}"
    assert sentence in ended.stderr.strip().splitlines()[-1]
