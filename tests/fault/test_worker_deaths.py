"""Workers that die or hang in a batch: their rows run again, and nobody waits for ever."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from tests.process.load import Load
from tests.process.models import DEATHS
from tests.process.pool_under_test import PATIENCE_S, Pool, in_small_shm, serving, until
from tests.process.web import ask

FATAL = ["kill", "segfault", "exit", "abort"]


def submit(client: bp.Client, tag: int, death: int = 0, **more: Any) -> Any:
    return client.submit("deadly", tag=[tag], death=[death], **more)


def restarts(pool: Pool, model: str = "") -> int:
    """Of the workers of one model, or of all."""
    rows = [row for row in pool.status()["processes"] if row["name"].startswith("worker")]
    return sum(row["restarts"] for row in rows if row["name"].endswith(f"of {model}" * bool(model)))


def serves_again(pool: Pool, model: str, workers: int) -> None:
    full = f"{workers}/{workers}"
    until(lambda: pool.status()["models"][model]["workers"] == full, "every worker's return")


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_of_a_dead_worker_are_right_after_a_retry(workers: int) -> None:
    """C31: by SIGKILL, a fault, an exit and an abort, with and without a second worker."""
    model = {"import": "Deadly", "workers_per_device": workers, "max_batch": 16}
    with serving(model) as pool, pool.client() as client:
        for number, death in enumerate(FATAL):
            tags = range(1000 * number + 1, 1000 * number + 41)
            # The last one kills, so that all the others are accepted before.
            futures = [submit(client, tag, DEATHS[death] * (tag == tags[-1])) for tag in tags]
            assert [f.result(PATIENCE_S)["tag"][0] for f in futures] == list(tags)
            assert restarts(pool) == number + 1
            serves_again(pool, "deadly", workers)
        assert pool.zombies() == []
        assert pool.claimed() == 0
        pids = {submit(client, tag).result(PATIENCE_S)["pid"][0] for tag in range(10)}
        assert pids <= set(pool.pids("worker"))
        assert pool.tally("deadly")["lost"] == 0


def test_a_row_that_kills_every_worker_gets_the_error_and_the_next_one_an_answer() -> None:
    """C31: nobody waits for ever. A row that may not run twice is not run twice."""
    model = {"import": "Deadly", "attempts": 2, "workers_per_device": 2}
    once = {"import": "Deadly", "name": "once", "idempotent": False}
    with serving(model, once) as pool, pool.client() as client:
        assert submit(client, 1).result(PATIENCE_S)["tag"].tolist() == [1]
        with pytest.raises(bp.WorkerLost, match=r"every attempt"):
            submit(client, 2, -DEATHS["exit"]).result(PATIENCE_S)
        assert restarts(pool) == 2, "attempts"
        serves_again(pool, "deadly", 2)
        assert submit(client, 3).result(PATIENCE_S)["tag"].tolist() == [3]
        assert pool.tally("deadly")["lost"] == 1

        with pytest.raises(bp.WorkerLost):
            client.submit("once", tag=[1], death=[DEATHS["kill"]]).result(PATIENCE_S)
        assert restarts(pool) == 3
        serves_again(pool, "once", 1)
        assert client.submit("once", tag=[1], death=[0]).result(PATIENCE_S)["tag"].tolist() == [1]


def test_a_worker_that_hangs_or_was_stopped_while_idle_is_killed_and_its_caller_answered() -> None:
    model = {"import": "Deadly", "batch_timeout_s": 0.5}
    stuck = "is stuck in a batch for more than batch_timeout_s = 0.5"
    with serving(model) as pool, pool.client() as client:
        start = time.monotonic()
        assert submit(client, 1, DEATHS["hang"]).result(PATIENCE_S)["tag"].tolist() == [1]
        assert time.monotonic() - start >= 0.5
        assert pool.log.count(stuck) == restarts(pool) == 1

        assert submit(client, 2).result(PATIENCE_S)["tag"].tolist() == [2]
        (pid,) = pool.pids("worker")
        os.kill(pid, signal.SIGSTOP)
        start = time.monotonic()
        assert submit(client, 3).result(PATIENCE_S)["tag"].tolist() == [3]
        assert time.monotonic() - start >= 0.5
        assert pool.log.count(stuck) == restarts(pool) == 2

        # A client that attaches later waits for the worker to map its lane, not for a batch.
        serves_again(pool, "deadly", 1)
        (pid,) = pool.pids("worker")
        os.kill(pid, signal.SIGSTOP)
        with pool.client() as other:
            assert submit(other, 1).result(PATIENCE_S)["tag"].tolist() == [1]
        assert pool.log.count("takes no new lane for more than batch_timeout_s = 0.5") == 1
        assert (pool.log.count(stuck), restarts(pool)) == (2, 3)


@pytest.mark.long
def test_a_deadline_is_kept_although_the_worker_hangs() -> None:
    model = {"import": "Deadly", "batch_timeout_s": 1.0, "attempts": 1}
    with serving(model) as pool, pool.client() as client:
        submit(client, 1).result(PATIENCE_S)
        # What watches the worker stands still: nothing but the deadlines can end the calls.
        pool.signal(signal.SIGSTOP)
        try:
            for tag, death in ((2, "hang"), (3, "")):
                with pytest.raises(bp.DeadlineExceeded):
                    client.infer("deadly", tag=[tag], death=[DEATHS.get(death, 0)], timeout_s=0.1)
        finally:
            pool.signal(signal.SIGCONT)
        until(lambda: restarts(pool) == 1, "the end of the hung worker")
        serves_again(pool, "deadly", 1)
        assert pool.log.count("is stuck in a batch") == 1
        assert submit(client, 4).result(PATIENCE_S)["tag"].tolist() == [4]
        until(lambda: pool.claimed() == 0, "the return of the slots")


@pytest.mark.long
def test_killed_again_and_again_under_load() -> None:
    """C31: no caller notices, and no zombie is left."""
    model = {"import": "Affine", "workers_per_device": 2}
    with serving(model) as pool, Load(pool) as load:
        for kill in range(4):
            victim = pool.pids("worker")[kill // 2]
            os.kill(victim, (signal.SIGKILL, signal.SIGSEGV)[kill % 2])
            until(lambda victim=victim: victim not in pool.pids("worker"), "its end")
            serves_again(pool, "affine", 2)
            answered = load.answered
            until(lambda answered=answered: load.answered > answered + 10, "more answers")
        assert (load.lost, load.absent, load.faults) == (0, 0, [])
        assert restarts(pool) == 4
        assert pool.zombies() == []


@pytest.mark.long
def test_a_worker_that_cannot_load_any_more_is_tried_again_with_pauses() -> None:
    """C37: no loop without a pause."""
    with serving("LoadsOnce") as pool, pool.client() as client:
        x = np.ones((1, 4), np.float32)
        assert client.infer("loadsonce", x=x)["y"].tolist() == [[3] * 4]
        pool.tracebacks_expected = True
        os.kill(*pool.pids("worker"), signal.SIGKILL)
        start = time.monotonic()
        until(lambda: len(list(pool.notes.glob("load-*"))) == 3, "two more tries")
        # The first at once, after useful work; then a pause, before another one.
        assert time.monotonic() - start > 0.4
        row = next(r for r in pool.status()["processes"] if r["name"].startswith("worker"))
        assert "the disk is gone" in row["last_error"]
        until(lambda: refused(client, x), "its time to come back is over")
        (pool.notes / "mended").touch()
        until(
            lambda: pool.status()["models"]["loadsonce"]["workers"] == "1/1", "the worker's return"
        )
        assert client.infer("loadsonce", x=x)["y"].tolist() == [[3] * 4]
        assert pool.log.count("the disk is gone") < 30


def refused(client: bp.Client, x: Any) -> bool:
    """True once a request is refused; before that it is taken, and waits for its deadline."""
    with pytest.raises((bp.NotReady, bp.DeadlineExceeded)) as caught:
        client.infer("loadsonce", x=x, timeout_s=0.05)
    if isinstance(caught.value, bp.NotReady):
        assert "no worker serves" in str(caught.value)
    return isinstance(caught.value, bp.NotReady)


def test_requests_are_taken_while_the_only_worker_comes_back() -> None:
    with serving("LoadsOnce") as pool, pool.client() as client:
        x = np.ones((1, 4), np.float32)
        assert client.infer("loadsonce", x=x)["y"].tolist() == [[3] * 4]
        pool.tracebacks_expected = True
        os.kill(*pool.pids("worker"), signal.SIGKILL)
        until(lambda: pool.status()["models"]["loadsonce"]["workers"] == "0/1", "the end")
        model = pool.status()["models"]["loadsonce"]
        assert (model["ready"], model["workers"]) == (True, "0/1"), "ready: requests are taken"
        assert ask(pool, "/v2/health/ready").status == 200
        assert ask(pool, "/v2/models/loadsonce/ready").status == 200
        assert not refused(client, x)
        waiting = client.submit("loadsonce", x=x, timeout_s=30)
        (pool.notes / "mended").touch()
        assert waiting.result(PATIENCE_S)["y"].tolist() == [[3] * 4]


@pytest.mark.long
def test_no_memory_for_the_next_worker_is_no_end_of_the_pool() -> None:
    models = {"import": "Affine", "slots": 256}, {"import": "Special", "slots": 256}
    with serving(*models, wrapper=in_small_shm()) as pool, pool.client() as client:
        x = np.ones((1, 4), np.float32)
        assert client.infer("affine", x=x)["y"].tolist() == [[3] * 4]
        filler = Path(f"/proc/{pool.pid}/root/dev/shm/filler")
        room = os.statvfs(filler.parent)
        with open(filler, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize)
        os.kill(pool.pids("worker")[0], signal.SIGKILL)
        until(lambda: "no room; trying again in 0.5 s" in pool.log, "the next start")
        assert client.infer("special", x=x[:, :3])["y"].tolist() == [[1] * 3]
        filler.unlink()
        serves_again(pool, "affine", 1)
        assert client.infer("affine", x=x)["y"].tolist() == [[3] * 4]
