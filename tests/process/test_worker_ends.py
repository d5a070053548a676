"""The end of workers: models are unloaded and Python ends, and nobody can hold up the pool."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from batchpool.client.control import ask_reload
from tests.process.ending_models import HOW, ROWS
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, started, until
from tests.process.test_reload import configure

MODEL = {"import": "tests.process.ending_models:Ending"}
SAID = ("load", "infer", "unload", "at exit")


def lines_of(pool: Pool, name: str) -> list[str]:
    """The lines of a note; none where it was not left."""
    path = pool.notes / name
    return path.read_text().splitlines() if path.exists() else []


def said(pool: Pool) -> list[str]:
    """The lines that models printed, in the order of the log."""
    return [line for line in pool.log.splitlines() if line.startswith(SAID)]


def ending(how: str = "", **server: Any) -> dict[str, Any]:
    """The arguments of `serving` for a model that ends so; Python buffers what is printed."""
    return {"env": {HOW: how, "PYTHONUNBUFFERED": ""}, "server": server}


def models_that(*hows: str) -> list[dict[str, Any]]:
    """A model for each way to end, which has that name."""
    return [{**MODEL, "name": how, "options": {"how": how}} for how in hows]


def pids_of(pool: Pool) -> dict[str, int]:
    """The worker of each model."""
    rows = [row for row in pool.status()["processes"] if row["name"].startswith("worker 0 of ")]
    return {row["name"].removeprefix("worker 0 of "): row["pid"] for row in rows}


@pytest.mark.parametrize(
    ("number", "whole_group"),
    [(signal.SIGTERM, False), (signal.SIGINT, True)],
)
def test_a_stop_unloads_each_model_once_and_loses_nothing_it_wrote(
    number: signal.Signals, whole_group: bool
) -> None:
    """A batch that runs then is answered before that."""
    with serving(MODEL, **ending()) as pool, pool.client() as client:
        (pid,) = pool.pids("worker")
        for tag in (1, 2):
            client.infer("ending", tag=[tag], seconds=[0.0])
        future = client.submit("ending", tag=[3], seconds=[0.3])
        until(lambda: pool.tally("ending")["batches"] == 3, "the start of the row")
        (pool.signal_all if whole_group else pool.signal)(number)
        assert pool.wait_end() == 0
        assert future.result(PATIENCE_S)["tag"].tolist() == [3]
        assert lines_of(pool, "unloads") == lines_of(pool, "exits") == [str(pid)]
        assert lines_of(pool, f"rows-{pid}") == ["1"] * ROWS + ["2"] * ROWS + ["3"] * ROWS
        assert said(pool) == ["load", "infer 1", "infer 2", "infer 3", "unload", "at exit"]
        pool.assert_all_answered()
        assert "WARNING" not in pool.log
        assert "ERROR" not in pool.log


@pytest.mark.long
def test_workers_that_do_not_end_are_killed_when_their_time_is_up() -> None:
    models = models_that("unload", "atexit", "thread")
    with serving(*models, **ending(unload_timeout_s=1.5)) as pool:
        pids = pids_of(pool)
        assert pool.stop() == 0
        for how, pid in pids.items():
            text = f"ERROR worker 0 of {how} (pid {pid}) did not end within unload_timeout_s = 1.5"
            assert pool.log.count(text) == 1
            assert lines_of(pool, "unloads").count(str(pid)) == 1
            assert lines_of(pool, "exits").count(str(pid)) == (how == "atexit")


def test_workers_end_at_the_same_time() -> None:
    """Each of the two waits for the other in its unload."""
    model = {**MODEL, "workers_per_device": 2}
    with serving(model, **ending("together", unload_timeout_s=60)) as pool:
        pids = pool.pids("worker")
        assert pool.stop() == 0
        assert sorted(map(int, lines_of(pool, "exits"))) == sorted(pids)


def test_an_error_in_unload_is_logged_and_changes_nothing() -> None:
    """And a worker that dies there is named."""
    with serving(*models_that("raises", "exits", "dies"), **ending()) as pool:
        pool.tracebacks_expected = True
        pids = pids_of(pool)
        assert pool.stop() == 0
        for error in ("RuntimeError: nothing to put away", "SystemExit: 9"):
            assert pool.log.count(f"ERROR unload of the model failed: {error}") == 1
        assert pool.log.count("ending_models.py") == 2, "the tracebacks"
        ended = sorted(str(pids[how]) for how in ("raises", "exits"))
        assert sorted(lines_of(pool, "exits")) == ended
        text = f"WARNING worker 0 of dies (pid {pids['dies']}) ended with exit status 7 at its end"
        assert text in pool.log
        assert "starting another" not in pool.log
        assert "stopped: every accepted request was answered" in pool.last_line


def test_a_second_signal_does_not_wait_for_unload() -> None:
    with serving(MODEL, **ending("unload", unload_timeout_s=3600)) as pool:
        pool.signal(signal.SIGTERM)
        until(lambda: lines_of(pool, "unloads"), "the call of unload")
        pool.signal(signal.SIGTERM)
        assert pool.wait_end() == 0
        assert "SIGTERM again: stopping at once" in pool.log
        assert "stopped: every accepted request was answered" in pool.last_line


def test_status_is_told_while_workers_end() -> None:
    with serving(MODEL, **ending("gate", unload_timeout_s=3600)) as pool, pool.client() as client:
        client.infer("ending", tag=[1], seconds=[0.0])
        pool.signal(signal.SIGTERM)
        until(lambda: lines_of(pool, "unloads"), "the call of unload")
        status = pool.status()
        states = {row["name"]: row["state"] for row in status["processes"]}
        assert (status["state"], states["worker 0 of ending"]) == ("stopped", "ending")
        (pool.notes / "gate").touch()
        assert pool.wait_end() == 0


def test_a_reload_waits_for_the_old_worker_and_the_new_one_serves_meanwhile() -> None:
    with serving(MODEL, **ending("gate", unload_timeout_s=3600)) as pool, pool.client() as client:

        def infer(tag: int) -> int:
            return int(client.infer("ending", tag=[tag], seconds=[0.0])["pid"][0])

        old = infer(1)
        outcome: list[Any] = []
        asking = threading.Thread(target=lambda: outcome.append(ask_reload(pool.socket, wait=True)))
        asking.start()
        until(lambda: lines_of(pool, "unloads"), "the call of unload")
        pids = {infer(tag) for tag in range(2, 50)}
        assert old not in pids
        assert len(pids) == 1
        assert pool.status()["reload"], "its memory is not free yet"
        states = {row["pid"]: (row["name"], row["state"]) for row in pool.status()["processes"]}
        assert states[old] == ("standby of worker 0 of ending", "ending")
        assert not outcome
        (pool.notes / "gate").touch()
        asking.join(60)
        assert [done for done, _ in outcome] == [True]
        assert lines_of(pool, "exits") == [str(old)]
        assert lines_of(pool, f"rows-{old}") == ["1"] * ROWS
        assert f"the standby of worker 0 of ending (pid {old}) has stopped" in pool.log
        assert "WARNING" not in pool.log


def test_a_model_that_a_reload_removes_is_unloaded() -> None:
    with serving(MODEL, "Affine", **ending()) as pool:
        (pid,) = [row["pid"] for row in pool.status()["processes"] if "of ending" in row["name"]]
        configure(pool, "Affine")
        assert ask_reload(pool.socket, wait=True)[0]
        until(lambda: lines_of(pool, "exits"), "the end of its worker")
        assert lines_of(pool, "unloads") == lines_of(pool, "exits") == [str(pid)]


@pytest.mark.long
def test_a_reload_kills_an_old_worker_that_does_not_end() -> None:
    with serving(MODEL, **ending("unload", unload_timeout_s=0.5)) as pool:
        (old,) = pool.pids("worker")
        assert ask_reload(pool.socket, wait=True)[0]
        assert f"of ending (pid {old}) did not end within unload_timeout_s = 0.5" in pool.log
        assert pool.pids("worker") != [old]


@pytest.mark.long
def test_a_worker_that_is_lost_is_not_unloaded() -> None:
    model = {**MODEL, "batch_timeout_s": 0.5}
    with serving(model) as pool, pool.client() as client:
        (first,) = pool.pids("worker")
        os.kill(first, signal.SIGKILL)
        until(lambda: pool.pids("worker") not in ([], [first]), "another worker")
        until(lambda: pool.status()["models"]["ending"]["workers"] == "1/1", "its readiness")
        (second,) = pool.pids("worker")
        client.submit("ending", tag=[1], seconds=[3600.0], timeout_s=1)
        until(lambda: f"(pid {second}) is stuck in a batch" in pool.log, "the watchdog")
        until(lambda: pool.pids("worker") not in ([], [second]), "another worker")
        pool.end_at_once()
        assert lines_of(pool, "exits") == []
        assert lines_of(pool, "unloads") == []


@pytest.mark.parametrize(("name", "unloads"), [("Unwarm", ["unwarm"]), ("Unloadable", [])])
def test_a_model_that_fails_in_its_warm_up_is_unloaded(name: str, unloads: list[str]) -> None:
    with started({"import": f"tests.process.ending_models:{name}"}) as pool:
        pool.tracebacks_expected, pool.expected_status = True, 1
        assert pool.wait_end() == 1
        assert lines_of(pool, "unloads") == unloads


def test_a_start_that_fails_unloads_the_models_that_were_warm() -> None:
    other = {"import": "tests.process.ending_models:AfterAnother"}
    with started(MODEL, other) as pool:
        pool.tracebacks_expected, pool.expected_status = True, 1
        until(lambda: "worker 0 of ending is warm" in pool.log, "the first model")
        (pool.notes / "gate").touch()
        assert pool.wait_end() == 1
        assert len(lines_of(pool, "exits")) == 1
        assert sorted(lines_of(pool, "unloads"))[1:] == ["unwarm"]
        assert "not even this one" in pool.last_line
