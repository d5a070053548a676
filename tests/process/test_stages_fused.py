"""A model whose workers run `preprocess` themselves: the answers, errors and limits of one that has
processes for it, in the same pool, and what check, status, metrics and the log say."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import batchpool as bp
from tests.process.callers import Callers
from tests.process.gates import open_gate, opened_at_last
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until
from tests.process.test_reload import begin, configure, end, write
from tests.process.test_stages import batches, ran_in, total, workers
from tests.process.web import ask

LIMITS: dict[str, Any] = {"max_batch": 8, "attempts": 2, "preprocess_max_batch": 3}
TOGETHER = {"import": "tests.process.staged_models:Together", **LIMITS, "workers_per_device": 2}
APART = {"import": "tests.process.staged_models:Staged", **LIMITS, "preprocess_workers": 1}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with serving(TOGETHER, APART) as pool:
        pool.tracebacks_expected = True  # of batches that fail on purpose
        yield pool


@pytest.fixture
def client(pool: Pool) -> Iterator[bp.Client]:
    with pool.client() as client:
        yield client


def test_both_stages_run_in_the_worker(pool: Pool, client: bp.Client) -> None:
    texts = ["a", "", "b" * 64, *("c" * n for n in range(60))]
    tags = list(range(1000, 1000 + len(texts)))
    found = client.infer("together", text=texts, tag=tags)
    assert found["total"].tolist() == list(map(total, texts))
    assert found["tag"].tolist() == tags
    known = workers(pool)
    own = {known[f"worker {i} of together"] for i in (0, 1)}
    assert "preprocess 0 of together" not in known
    for first, second in found["pids"].tolist():
        assert first == second
        assert first in own


def test_rows_of_all_sizes_get_equal_answers_fused_and_apart(client: bp.Client) -> None:
    draw = random.Random(3)
    texts = ["".join(draw.choices("abcdefgh ", k=draw.randrange(65))) for _ in range(200)]
    texts[17], texts[90], texts[130] = "pre invalid", "pre refused", "pre wrong"
    both = [
        client.infer(name, text=texts, tag=list(range(200)), errors="return")
        for name in ("together", "staged")
    ]
    for name in ("total", "tag"):
        one, other = ([str(value) for value in found[name]] for found in both)
        assert one == other
    assert isinstance(both[0]["total"][17], bp.InvalidInput)
    assert isinstance(both[0]["total"][130], bp.ModelError)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("pre invalid", bp.InvalidInput, "not a text"),
        ("pre refused", bp.InvalidInput, "not this text"),
        ("pre wrong", bp.ModelError, "KeyError: 'vocabulary'"),
        ("pre long", bp.ModelError, "ids"),
        ("pre raise", bp.ModelError, "RuntimeError: this row raises"),
        ("run raise", bp.ModelError, "RuntimeError: this row raises"),
        ("pre kill", bp.WorkerLost, "SIGKILL"),
        ("run kill", bp.WorkerLost, "SIGKILL"),
    ],
)
def test_a_bad_row_ends_alone(
    client: bp.Client, text: str, error: type[Exception], message: str
) -> None:
    futures = [client.submit("together", text=[t]) for t in ("one", "two", text, "three", "four")]
    with pytest.raises(error, match=message):
        futures.pop(2).result(PATIENCE_S)
    found = [int(future.result(PATIENCE_S)["total"][0]) for future in futures]
    assert found == [total(t) for t in ("one", "two", "three", "four")]


def test_a_refused_row_is_not_inferred_and_its_batch_not_run_again(
    pool: Pool, client: bp.Client
) -> None:
    retried = pool.tally("together")["retried"]
    found = client.infer(
        "together", text=["fine", "pre refused"], tag=[7001, 7002], errors="return"
    )["tag"]
    assert (int(found[0]), str(found[1])) == (7001, "not this text")
    assert (batches(pool, "run", 7001), batches(pool, "run", 7002)) == (1, 0)
    assert pool.tally("together")["retried"] == retried


@pytest.mark.parametrize(("stage", "gate"), [("pre", 9031), ("run", 9032)])
def test_rows_of_a_worker_that_dies_in_either_stage_run_again(
    pool: Pool, client: bp.Client, stage: str, gate: int
) -> None:
    text = f"{stage} gate {gate}"
    with opened_at_last(pool, gate):
        future = client.submit("together", text=[text], tag=[gate])
        until(lambda: batches(pool, stage, gate) == 1, "the batch of the gated row")
        (pid,) = ran_in(pool, stage, gate)
        os.kill(pid, signal.SIGKILL)  # no other worker: the row moves to one at once
        open_gate(pool, gate)
        assert future.result(PATIENCE_S)["total"].tolist() == [total(text)]


def test_status_metrics_and_log_tell_where_it_runs(pool: Pool, client: bp.Client) -> None:
    client.infer("together", text=["a"])
    told = pool.status()["models"]
    assert (told["together"]["preprocess"], told["staged"]["preprocess"]) == (
        "in the workers",
        "in 1 process of its own",
    )
    assert "stages" not in told["together"]
    assert "preprocess of together runs in the workers" in pool.log
    text = ask(pool, "/metrics").body.decode()
    assert 'model="together",stage="infer"' in text
    assert 'model="together",stage="preprocess"' not in text, "it is no stage of its own"
    assert 'model="staged",stage="preprocess"' in text


class Asking(Callers):
    """Local programs and their answers' versions: of the code of both stages."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        super().__init__([self._ask] * 4)
        self.versions: set[tuple[int, int]] = set()

    def _ask(self, number: int) -> None:
        with self._pool.client() as client:
            while not self._stop.is_set():
                text = f"{number} {self.counts[number]}"
                found = client.infer("together", text=[text])
                assert found["total"].tolist() == [total(text)]
                first, second = found["versions"][0].tolist()
                self.versions.add((first, second))
                self.count(number)


@pytest.mark.long
def test_a_reload_replaces_both_stages_at_once_and_may_part_them() -> None:
    one = {**TOGETHER, "workers_per_device": 1}
    with serving(one) as pool, Asking(pool) as asking:
        lanes = [lane["lane"] for lane in pool.status()["lanes"]]
        write(pool, "version", 5)
        status, line = end(begin(pool))
        assert status == 0, line
        asking.await_more()
        assert asking.versions == {(0, 0), (5, 5)}
        assert [lane["lane"] for lane in pool.status()["lanes"]] == lanes, "lanes are kept"
        configure(pool, {**one, "preprocess_workers": 1})
        status, line = end(begin(pool))
        assert status == 0, line
        asking.await_more()
        assert "preprocess 0 of together" in workers(pool)
        configure(pool, one)
        status, line = end(begin(pool))
        assert status == 0, line
        asking.await_more()
        assert pool.status()["models"]["together"]["preprocess"] == "in the workers"
