"""Reload and drain of real pools under load: no request fails, each worker's answers switch once,
and whatever dies meanwhile, the end is all new or all old."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import pytest

from tests.process.pool_under_test import (
    ROOT,
    Pool,
    command,
    model_table,
    serving,
    toml,
    until,
)
from tests.process.versions import Steady
from tests.process.web import ask

VERSIONS = "tests.process.versions"
TWO: dict[str, Any] = {"import": f"{VERSIONS}:Version", "workers_per_device": 2}


def run(pool: Pool, *words: str) -> subprocess.CompletedProcess[str]:
    """One command of `batchpool` for this pool."""
    return subprocess.run(
        command(*words, str(pool.folder / "pool.toml")),
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def begin(pool: Pool, verb: str = "reload") -> subprocess.Popen[str]:
    """`batchpool reload` (or another), which goes on while the test does something else."""
    return subprocess.Popen(
        command(verb, str(pool.folder / "pool.toml")),
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def end(reload: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit status and the one line that it printed."""
    out, err = reload.communicate(timeout=120)
    (line,) = (out + err).splitlines()
    return reload.returncode, line


def write(pool: Pool, name: str, text: object) -> None:
    (pool.notes / name).write_text(str(text))


def configure(pool: Pool, *models: Any, **server: Any) -> None:
    """Another configuration file, in place of the one it was started with."""
    settings = {"port": pool.port, "socket": pool.socket, "frontends": 1, **server}
    tables = [model_table(model) for model in models]
    (pool.folder / "pool.toml").write_text(toml(settings, tables))


def worker(pool: Pool, name: str) -> int:
    """The pid of a worker by its name in the status; 0 if there is none."""
    rows = pool.status()["processes"]
    return next((row["pid"] or 0 for row in rows if row["name"] == name), 0)


def seat(pool: Pool, number: int) -> int:
    return worker(pool, f"worker {number} of version")


def serving_heir(pool: Pool, number: int, old: int) -> int:
    """Wait until a replacement has this seat; its pid."""

    def has() -> int:
        pid = seat(pool, number)
        return pid if pid != old and worker(pool, f"standby of worker {number} of version") else 0

    found: int = until(has, f"a replacement in seat {number}")
    return found


def loading_heir(pool: Pool, number: int) -> int:
    """Wait until a replacement of this seat loads; its pid."""
    name = f"replacement of worker {number} of version"
    found: int = until(lambda: worker(pool, name), name)
    return found


@pytest.mark.long
def test_reloads_under_load_switch_once_or_not_at_all() -> None:
    with serving(TWO) as pool, Steady(pool) as steady:
        pool.tracebacks_expected = True  # of the model that does not load
        first = [seat(pool, 0), seat(pool, 1)]

        # To a new version, and other policies.
        write(pool, "version", 2)
        changed = {**TWO, "max_wait_ms": 3, "max_batch": 32, "request_timeout_s": 20}
        configure(pool, changed, drain_s=20)
        reload = run(pool, "reload")
        assert reload.returncode == 0, reload.stderr
        assert reload.stdout.startswith("reload done in ")
        for text in ("2 workers of version", "drain_s: 30.0 -> 20.0", "max_batch of version: 64"):
            assert text in reload.stdout
        second = [seat(pool, 0), seat(pool, 1)]
        assert not set(first) & set(second)
        assert not set(first) & set(pool.processes()), "the old ones have ended"
        steady.await_more()
        paths = [steady.paths(pair) for pair in map(set, zip(first, second, strict=True))]
        assert paths[0] | paths[1] <= {(), (1,), (1, 2), (2,)}, "each seat switches once"
        assert (1, 2) in paths[0] | paths[1]
        config = ask(pool, "/v2/models/version/config").object
        assert config["max_batch_size"] == 32
        assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 3000
        assert pool.status()["models"]["version"]["max_batch"] == 32
        assert pool.status()["last_reload"].startswith("done in ")

        # To one whose second worker answers its warm-up wrongly: back again.
        write(pool, "version", 3)
        write(pool, "load", "fine wrong")
        status, line = end(begin(pool))
        assert status == 1
        assert line.startswith("batchpool: error: reload failed: undone after ")
        assert "worker 1 of version failed: output 'tag' has shape [1]" in line
        assert [seat(pool, 0), seat(pool, 1)] == second, "they had only stood by"
        assert pool.status()["last_reload"].startswith("failed: undone")
        steady.await_more()
        now = [(s.pid, s.version) for seen in steady.seen for s in seen[-5:]]
        assert set(now) <= {(second[0], 2), (second[1], 2)}
        assert any(s.version == 3 for seen in steady.seen for s in seen), "one heir did serve"
        steady.await_more()
    assert steady.failures == []


@pytest.mark.long
def test_deaths_in_the_middle_of_a_reload() -> None:
    with serving(TWO) as pool, Steady(pool) as steady:
        pool.tracebacks_expected = True
        old = [seat(pool, 0), seat(pool, 1)]

        # An heir that loads is killed: the old ones serve on.
        write(pool, "version", 2)
        write(pool, "load", "fine waits")
        reload = begin(pool)
        served = serving_heir(pool, 0, old[0])
        os.kill(loading_heir(pool, 1), signal.SIGKILL)
        assert end(reload)[0] == 1
        assert [seat(pool, 0), seat(pool, 1)] == old
        assert served not in pool.processes()

        # The heir that serves is killed: the same.
        write(pool, "load", "fine waits")
        reload = begin(pool)
        os.kill(serving_heir(pool, 0, old[0]), signal.SIGKILL)
        status, line = end(reload)
        assert (status, "worker 0 of version was killed by SIGKILL" in line) == (1, True)
        assert [seat(pool, 0), seat(pool, 1)] == old
        steady.await_more()

        # The batcher is killed: the new one knows who takes rows.
        write(pool, "load", "fine waits")
        reload = begin(pool)
        heir = serving_heir(pool, 0, old[0])
        loading_heir(pool, 1)
        steady.await_more()
        (batcher,) = pool.pids("batcher")
        os.kill(batcher, signal.SIGKILL)
        until(lambda: "has taken over" in pool.log, "the takeover")
        steady.await_more()
        counts = [len(seen) for seen in steady.seen]
        steady.await_more()
        pids = {s.pid for seen, n in zip(steady.seen, counts, strict=True) for s in seen[n:]}
        assert pids <= {heir, old[1]}, "nobody off duty"

        # A standby is killed, and the worker whose heir still loads.
        os.kill(worker(pool, "standby of worker 0 of version"), signal.SIGKILL)
        os.kill(seat(pool, 1), signal.SIGKILL)
        until(lambda: seat(pool, 1) not in (0, old[1]), "another worker in seat 1")
        steady.await_more()
        pids = {s.pid for seen, n in zip(steady.seen, counts, strict=True) for s in seen[n:]}
        assert pids <= {heir, old[1], seat(pool, 1)}
        assert heir in pids, "nobody else was there"

        # Two more wishes while it runs are one more reload.
        pool.signal(signal.SIGHUP)
        pool.signal(signal.SIGHUP)
        write(pool, "go", "")
        status, line = end(reload)
        assert status == 0, line
        until(lambda: pool.log.count("reload done in") == 2, "the second reload")
        assert pool.status()["reload"] is None
        assert seat(pool, 0) != heir
        steady.await_more()
        now = {s.version for seen in steady.seen for s in seen[-5:]}
        assert now == {2}
        assert len(pool.pids("worker")) == 2
        assert pool.log.count("reading the configuration") == 4
    assert steady.failures == []
