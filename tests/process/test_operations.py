"""Operators' commands and their ends: drain and undo, reloads that are refused, that
wait, or that the end of the pool cuts off; and what is told to the service manager."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import batchpool as bp
from tests.process.pool_under_test import ROOT, catches, command, serving, started, until
from tests.process.service_double import Ear
from tests.process.test_reload import (
    TWO,
    VERSIONS,
    begin,
    configure,
    end,
    loading_heir,
    run,
    seat,
    write,
)
from tests.process.web import ask

ONE = {**TWO, "workers_per_device": 1}
ONES = np.ones((1, 4), np.float32)
AS_NOBODY = """
import os, sys
from batchpool.client.control import ask_drain, ask_reload, ask_status
from batchpool.core.errors import InvalidRequest
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
assert ask_status(sys.argv[1])["state"] == "ready"
for ask in (lambda: ask_reload(sys.argv[1], wait=True), lambda: ask_drain(sys.argv[1], on=True)):
    try:
        ask()
    except InvalidRequest as exc:
        print(exc)
"""


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[Ear]:
    with Ear(str(tmp_path / "notify")) as ear:
        yield ear


@pytest.mark.long
def test_drain_and_undo() -> None:
    with serving("Gated", "Affine", ONE) as pool, pool.client() as client:
        assert client.infer("affine", x=ONES)["y"].tolist() == [[3] * 4]
        future = client.submit("gated", tag=[7], seconds=[0.0], gate=[1])
        until(lambda: pool.tally("gated")["batches"], "the start of the row")
        drain = run(pool, "drain", "--timeout-s", "0.2")
        assert drain.returncode == 1
        assert drain.stdout == "draining: 1 row under way\n"
        assert drain.stderr == "batchpool: error: 1 row still under way after 0.2 s\n"
        assert pool.status()["state"] == "draining"
        until(lambda: ask(pool, "/v2/models/affine/infer", b"{}").status == 503, "a refusal")
        refused = ask(pool, "/v2/models/affine/infer", b"{}")
        assert refused.refused == (503, "draining")
        assert int(refused.headers["retry-after"]) >= 1
        assert ask(pool, "/v2/health/ready").status == 503
        assert ask(pool, "/v2/models/affine/ready").status == 503
        assert ask(pool, "/v2/health/live").status == 200
        with pytest.raises(bp.Draining):
            client.infer("affine", x=ONES)

        # Whoever undoes a drain has the last word, though another still waits for its end.
        waiting = begin(pool, "drain")
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "draining: 1 row under way\n"
        assert run(pool, "drain", "--undo").returncode == 0
        assert end(waiting) == (
            1,
            "batchpool: error: the pool takes requests again: somebody else has undone the drain",
        )
        until(lambda: pool.status()["state"] == "ready", "it takes requests")
        assert client.infer("affine", x=ONES)["y"].tolist() == [[3] * 4]
        assert f"uid {os.getuid()} (pid {waiting.pid}) asks for a drain" in pool.log

        assert run(pool, "drain", "--timeout-s", "0").returncode == 1
        write(pool, "gate-1", "")
        assert run(pool, "drain").returncode == 0
        assert future.result(1)["tag"].tolist() == [7], "accepted before"
        assert pool.status()["state"] == "drained"

        # It stays so, whoever dies or is replaced.
        (batcher,) = pool.pids("batcher")
        os.kill(batcher, signal.SIGKILL)
        until(lambda: "has taken over" in pool.log, "another batcher")
        with pytest.raises(bp.Draining):
            client.submit("affine", x=ONES)
        old = seat(pool, 0)
        write(pool, "version", 5)
        assert run(pool, "reload").returncode == 0
        assert seat(pool, 0) != old
        metrics = ask(pool, "/metrics").body.decode()
        assert 'batchpool_reloads_total{outcome="done"} 1.0' in metrics
        assert 'batchpool_reloads_total{outcome="failed"} 0.0' in metrics
        (at_s,) = re.findall(r"^batchpool_last_reload_timestamp_seconds (\S+)$", metrics, re.M)
        assert time.time() - 600 < float(at_s) <= time.time()
        with pool.client() as late, pytest.raises(bp.Draining):
            late.infer("version", tag=[1])
        assert run(pool, "drain").stdout == "drained: every accepted request is answered\n"

        undo = run(pool, "drain", "--undo")
        assert (undo.returncode, undo.stdout) == (0, "the pool takes requests again\n")
        until(lambda: ask(pool, "/v2/health/ready").status == 200, "readiness")
        assert client.infer("affine", x=ONES)["y"].tolist() == [[3] * 4]
        assert client.infer("version", tag=[1])["version"].tolist() == [5]
        assert pool.status()["state"] == "ready"
        assert run(pool, "drain").returncode == 0, "and a drained pool stops as any other"


@pytest.mark.long
def test_reloads_that_wait_are_refused_or_cut_off(ear: Ear) -> None:
    with started(ONE, env={"NOTIFY_SOCKET": ear.name}) as pool:
        # Asked for before there is a pool to speak of: it comes as soon as it can be done.
        until(lambda: catches(pool.pid, signal.SIGHUP), "the beginning")
        pool.signal(signal.SIGHUP)
        until(lambda: len(ear.said("READY")) == 2, "the end of the reload")
        words = [
            word for message in ear.listen() for word in ("READY", "RELOADING") if word in message
        ]
        assert words == ["READY", "RELOADING", "READY"]
        (asked,) = [message for message in ear.listen() if "RELOADING" in message]
        assert int(asked["MONOTONIC_USEC"]) > 0
        assert any("reloading: 0 of 1 new workers serve" in text for text in ear.said("STATUS"))

        # What needs a restart is refused as a whole, by name.
        old = pool.processes()
        configure(pool, {**ONE, "max_wait_ms": 9}, "Affine", max_clients=5, frontends=2)
        refused = run(pool, "reload")
        assert refused.returncode == 1
        assert refused.stderr == (
            "batchpool: error: reload failed: nothing was changed: max_clients and frontends"
            " changed: restart the service\n"
        )
        (pool.folder / "pool.toml").write_text("[server]\nprot = 1\n")
        wrong = subprocess.run(
            command("reload", "--socket", pool.socket),
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert wrong.returncode == 1
        assert "nothing was changed" in wrong.stderr
        assert 'pool.toml: [server]: unknown key prot = 1; did you mean "port"?' in wrong.stderr
        assert pool.processes() == old
        assert pool.status()["last_reload"].startswith("failed: nothing was changed")
        until(lambda: "last reload failed: nothing" in ear.said("STATUS")[-1], "word of it")

        # Another class, and more workers; and a front end that dies in the middle of it.
        write(pool, "load", "fine waits")
        configure(pool, {**TWO, "import": f"{VERSIONS}:Other", "max_wait_ms": 9})
        reload = begin(pool)
        loading_heir(pool, 1)
        (frontend,) = pool.pids("frontend")
        os.kill(frontend, signal.SIGKILL)
        until(lambda: "serves again" in pool.log, "another front end")
        write(pool, "go", "")
        status, line = end(reload)
        assert (status, "max_wait_ms of version: 1.0 -> 9.0" in line) == (0, True)
        config = until(lambda: ask(pool, "/v2/models/version/config").object, "the configuration")
        assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 9000
        with pool.client() as client:
            assert client.infer("version", tag=[1])["version"].tolist() == [1001]
        assert pool.status()["models"]["version"]["workers"] == "2/2"
        assert pool.pids("worker") == [seat(pool, 0), seat(pool, 1)]

        # Fewer again; and nobody else may ask for it.
        configure(pool, ONE)
        if os.getuid() == 0:
            pool.folder.chmod(0o755)
            os.chmod(pool.socket, 0o666)
            said = subprocess.run(
                [sys.executable, "-c", AS_NOBODY, pool.socket],
                cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
            ).stdout.splitlines()  # fmt: skip
            assert said == [
                f"you may not {what} this pool: only root and the user it runs as (uid 0) may"
                for what in ("reload", "drain")
            ]
        assert run(pool, "reload", "--no-wait").stdout == "reload asked for\n"
        until(lambda: len(pool.pids("worker")) == 1, "one worker less")
        until(lambda: pool.status()["reload"] is None, "the end of the reload")

        # One that loads for too long is given up.
        assert "no reload is under way" in run(pool, "reload", "--cancel").stderr
        (pool.notes / "go").unlink()
        write(pool, "load", "waits")
        reload = begin(pool)
        loading_heir(pool, 0)
        cancelled = run(pool, "reload", "--cancel")
        assert cancelled.stdout == "reload cancelled: the old workers serve\n", cancelled.stderr
        status, line = end(reload)
        assert (status, "the old workers serve: it was cancelled" in line) == (1, True)

        # The end of the pool ends a reload.
        write(pool, "load", "waits")
        reload = begin(pool)
        heir = loading_heir(pool, 0)
        assert pool.stop() == 0
        assert end(reload) == (1, "batchpool: error: reload failed: the pool is stopping")
        assert heir not in pool.processes()
