"""Nobody ends when something runs out: descriptors, or room in a message."""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

import batchpool as bp
from batchpool.control.channel import MAX_PACKET_BYTES, Channel
from tests.process.pool_under_test import Pool, serving, started, toml, until
from tests.process.test_reload import run
from tests.process.web import ask
from tests.unit.control.packets import receive_form, send_form

AGAIN = {"import": "Affine", "name": "again"}  # the same class under another name
ONES = np.ones((1, 4), np.float32)
SHORT = r"too many open files: this process may have \d+ \(RLIMIT_NOFILE\)"


def descriptors(pool: Pool) -> list[int]:
    """Those of the supervisor."""
    return [int(name) for name in os.listdir(f"/proc/{pool.pid}/fd")]


@contextmanager
def at_most(pool: Pool, limit: int) -> Iterator[None]:
    """The supervisor may have so many descriptors, for a while."""
    soft, hard = resource.prlimit(pool.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pool.pid, resource.RLIMIT_NOFILE, (limit, hard))
    yield
    resource.prlimit(pool.pid, resource.RLIMIT_NOFILE, (soft, hard))


def all_serve(pool: Pool) -> bool:
    status = pool.status()
    return all(row["state"] in ("running", "serving") for row in status["processes"])


def test_a_pool_outlasts_a_want_of_descriptors() -> None:
    with serving("Affine", AGAIN) as pool, ExitStack() as stack:
        first = stack.enter_context(pool.client())
        with at_most(pool, len(descriptors(pool)) + 40):
            clients = []
            with pytest.raises(bp.InternalError, match=f"(another lane|more clients): {SHORT}"):
                while True:
                    clients.append(stack.enter_context(pool.client()))
                    for name in ("affine", "again"):
                        assert clients[-1].infer(name, x=ONES)["y"].tolist() == [[3] * 4]
            assert len(clients) > 2
            # What clients may not take is enough to look, and to replace whoever dies.
            for kind in ("worker", "batcher", "frontend"):
                (pid, *_) = pool.pids(kind)
                os.kill(pid, signal.SIGKILL)
                until(lambda kind=kind, pid=pid: pid not in pool.pids(kind), "its end")
                until(lambda: all_serve(pool), "its successor")
                assert clients[0].infer("affine", x=ONES)["y"].tolist() == [[3] * 4]
            assert ask(pool, "/v2/health/ready").status == 200

        # Every one is taken: who comes waits, and is answered once there is room again.
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Below 3 none is ever free, whatever the supervisor closes at this moment.
        assert {0, 1, 2} <= set(descriptors(pool))
        before = resource.prlimit(pool.pid, resource.RLIMIT_NOFILE)
        with sock, at_most(pool, 3):
            pool.signal(signal.SIGHUP)
            until(lambda: "reload failed: nothing was changed: cannot start" in pool.log)
            sock.connect(pool.socket)
            channel = Channel(sock)
            send_form(channel, {"op": "status"})
            until(lambda: "no client can be taken: too many open files" in pool.log)
            assert clients[0].infer("affine", x=ONES)["y"].tolist() == [[3] * 4]
            resource.prlimit(pool.pid, resource.RLIMIT_NOFILE, before)
            assert receive_form(channel)[0]["op"] == "status"
        assert "reload done" not in pool.log
        assert run(pool, "reload").returncode == 0
        first.infer("affine", x=ONES)
        assert pool.process.poll() is None


def test_a_start_without_descriptors_ends_in_one_line() -> None:
    for limit in (20, 28):
        with started(
            "Affine", wrapper=["sh", "-c", f'ulimit -n {limit} && exec "$0" "$@"']
        ) as pool:
            pool.expected_status = 1
            assert pool.wait_end() == 1
            assert "too many open files" in pool.last_line, pool.log
            assert pool.last_line.startswith("batchpool: error:")


@pytest.mark.long
def test_a_model_of_very_many_tensors_is_served_and_comes_by_a_reload() -> None:
    x = {"input" * 25 + str(i): np.full(1, i % 5, np.float32) for i in range(900)}
    total = [float(sum(i % 5 for i in range(900)))]
    with serving("Affine") as pool, pool.client() as client:
        config = Path(pool.folder / "pool.toml")
        models = [
            {"import": f"tests.process.models:{name}", "devices": "cpu", "max_wait_ms": 1}
            for name in ("Affine", "Broad")
        ]
        server = {"port": pool.port, "socket": pool.socket, "frontends": 1}
        config.write_text(toml(server, models))
        done = run(pool, "reload")
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(str(ask(pool, "/v2/models/broad").object)) > MAX_PACKET_BYTES
        assert client.infer("broad", **x)["y"].tolist() == total
        os.kill(pool.pids("batcher")[0], signal.SIGKILL)
        with pool.client() as another:
            assert another.infer("broad", **x)["y"].tolist() == total
