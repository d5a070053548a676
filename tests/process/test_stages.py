"""A model that preprocesses in processes of its own, through a pool: right rows, errors of single
rows, deaths in each stage and between them, deadlines, metrics."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import batchpool as bp
from tests.process.gates import open_gate, opened_at_last
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until
from tests.process.web import ask

MODEL: dict[str, Any] = {
    "import": "tests.process.staged_models:Staged",
    "preprocess_workers": 2,
    "preprocess_max_batch": 4,
    "workers_per_device": 2,
    "max_batch": 8,
    "attempts": 2,
}
URL = "/v2/models/staged/infer"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with serving(MODEL) as pool:
        pool.tracebacks_expected = True  # of batches that fail on purpose
        yield pool


@pytest.fixture
def client(pool: Pool) -> Iterator[bp.Client]:
    with pool.client() as client:
        yield client


def body_of(*texts: str) -> bytes:
    tensor = {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}
    return json.dumps({"inputs": [tensor]}).encode()


def total(text: str) -> int:
    return sum(text.encode())


def ran_in(pool: Pool, stage: str, tag: int) -> list[int]:
    """The pids of the workers that had the row with this tag in a batch of a stage, in order."""
    path = pool.notes / f"batches-{stage}"
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [line.split() for line in lines]
    return [int(pid.removeprefix("pid=")) for pid, *tags in rows if str(tag) in tags]


def batches(pool: Pool, stage: str, tag: int) -> int:
    """In how many batches of a stage the row with this tag was so far."""
    return len(ran_in(pool, stage, tag))


def of_stage(pool: Pool, stage: str) -> dict[str, Any]:
    """The counts of a stage: `rows` have been sent to its workers, `queued` have not."""
    label = {"pre": "preprocess", "run": "infer"}[stage]
    found: dict[str, Any] = pool.tally("staged")["stages"][label]
    return found


def workers(pool: Pool) -> dict[str, int]:
    return {row["name"]: row["pid"] for row in pool.status()["processes"]}


def test_rows_take_both_stages_each_in_its_own_processes(pool: Pool, client: bp.Client) -> None:
    texts = ["a", "", "b" * 64, *(f"text {i}" for i in range(60))]
    tags = list(range(1000, 1000 + len(texts)))
    found = client.infer("staged", text=texts, tag=tags)
    assert found["total"].tolist() == list(map(total, texts))
    assert found["tag"].tolist() == tags, "a kept input reaches infer as it came"
    pre, run = set(found["pids"][:, 0].tolist()), set(found["pids"][:, 1].tolist())
    known = workers(pool)
    assert pre <= {known[f"preprocess {i} of staged"] for i in (0, 1)}
    assert run <= {known[f"worker {i} of staged"] for i in (0, 1)}
    answer = ask(pool, URL, body_of("hello"))
    assert (answer.status, answer.object["outputs"][0]["data"]) == (200, [total("hello")])


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("pre invalid", bp.InvalidInput, "not a text"),
        ("pre refused", bp.InvalidInput, "not this text"),
        ("pre wrong", bp.ModelError, "KeyError: 'vocabulary'"),
        ("pre bug", bp.ModelError, "ValueError: a bug"),
        ("pre raised", bp.InvalidInput, "not this one"),
        ("pre long", bp.ModelError, "feature 'ids' of this row has shape"),
        ("pre raise", bp.ModelError, "RuntimeError: this row raises"),
        ("run raise", bp.ModelError, "RuntimeError: this row raises"),
        ("pre kill", bp.WorkerLost, "SIGKILL"),
        ("run kill", bp.WorkerLost, "SIGKILL"),
    ],
)
def test_a_bad_row_ends_alone(
    pool: Pool, client: bp.Client, text: str, error: type[Exception], message: str
) -> None:
    """Whatever shares its batches in either stage is answered."""
    futures = [client.submit("staged", text=[t]) for t in ("one", "two", text, "three", "four")]
    with pytest.raises(error, match=message):
        futures.pop(2).result(PATIENCE_S)
    found = [int(future.result(PATIENCE_S)["total"][0]) for future in futures]
    assert found == [total(t) for t in ("one", "two", "three", "four")]


def test_a_refusal_is_the_callers_fault_over_http(pool: Pool) -> None:
    answer = ask(pool, URL, body_of("fine", "pre refused"))
    assert answer.status == 400
    said = answer.object
    assert (said["error"], said["details"], said["row"]) == ("not this text", {"at": 4}, 1)


def test_a_row_that_failed_goes_no_further(pool: Pool, client: bp.Client) -> None:
    with pytest.raises(bp.InvalidInput):
        client.infer("staged", text=["pre invalid"], tag=[77])
    client.infer("staged", text=["behind it"], tag=[78])
    assert (batches(pool, "pre", 77), batches(pool, "run", 77)) == (1, 0)
    assert (batches(pool, "pre", 78), batches(pool, "run", 78)) == (1, 1)


def test_attempts_count_for_each_stage(pool: Pool, client: bp.Client) -> None:
    """attempts = 2: a row outlives one death of a worker in each stage."""
    found = client.infer("staged", text=["pre once 1"], tag=[21])
    assert found["total"].tolist() == [total("pre once 1")]
    assert client.infer("staged", text=["run once 2"], tag=[22])["tag"].tolist() == [22]
    assert (batches(pool, "pre", 21), batches(pool, "run", 21)) == (2, 1)
    assert (batches(pool, "pre", 22), batches(pool, "run", 22)) == (1, 2)


@pytest.mark.parametrize(("stage", "gate"), [("pre", 31), ("run", 32)])
def test_a_worker_killed_in_a_batch_gives_its_rows_back_to_its_stage(
    pool: Pool, client: bp.Client, stage: str, gate: int
) -> None:
    text = f"{stage} gate {gate}"
    with opened_at_last(pool, gate):
        future = client.submit("staged", text=[text], tag=[gate])
        until(lambda: batches(pool, stage, gate) == 1, "the batch of the gated row")
        (pid,) = ran_in(pool, stage, gate)
        os.kill(pid, signal.SIGKILL)  # no other worker: the row moves to one at once
        open_gate(pool, gate)
        assert future.result(PATIENCE_S)["total"].tolist() == [total(text)]
    assert batches(pool, stage, gate) == 2
    assert batches(pool, {"pre": "run", "run": "pre"}[stage], gate) == 1


@pytest.mark.parametrize(("stage", "gate"), [("pre", 41), ("run", 42)])
def test_a_new_batcher_knows_the_stage_of_every_row(
    pool: Pool, client: bp.Client, stage: str, gate: int
) -> None:
    """Rows run in one stage, and others wait for the same stage, when the batcher is killed."""
    texts = [f"{stage} gate {gate}"] * 24
    tags = list(range(gate * 1000, gate * 1000 + 24))
    with opened_at_last(pool, gate):
        futures = [
            client.submit("staged", text=[t], tag=[n]) for t, n in zip(texts, tags, strict=True)
        ]
        until(lambda: any(batches(pool, stage, tag) for tag in tags), "a batch at the gate")
        if stage == "run":
            until(lambda: all(batches(pool, "pre", tag) for tag in tags), "all features")
        (pid,) = pool.pids("batcher")
        os.kill(pid, signal.SIGKILL)
        until(lambda: pool.pids("batcher") not in ([], [pid]), "the next batcher")
        open_gate(pool, gate)
        assert [future.result(PATIENCE_S)["tag"].item() for future in futures] == tags
    assert [batches(pool, "pre", tag) for tag in tags] == [1] * 24
    assert [batches(pool, "run", tag) for tag in tags] == [1] * 24


@pytest.mark.parametrize(("stage", "gate"), [("pre", 51), ("run", 52)])
def test_deadlines_pass_in_either_queue(
    pool: Pool, client: bp.Client, stage: str, gate: int
) -> None:
    """All workers of the stage wait at the gate, and each has another batch queued behind it."""
    until(lambda: of_stage(pool, stage)["workers"] == "2/2", "both workers of the stage")
    with opened_at_last(pool, gate):
        sent_before = of_stage(pool, stage)["rows"]
        # More than two workers may have in flight, four batches of 8 rows each.
        busy = [client.submit("staged", text=[f"{stage} gate {gate}"] * 8) for _ in range(12)]

        def given_up() -> int:
            """A batcher that hears of the caller's end before its clock does counts a cancel."""
            tally = pool.tally("staged")
            return int(tally["expired"] + tally["cancelled"])

        def is_full() -> bool:
            """All rows have come to the stage, and more than a batch of them waits there."""
            now = of_stage(pool, stage)
            return bool(now["queued"] == 96 - (now["rows"] - sent_before) > 8)

        # Before, a worker with room for one more batch would take the late row, whose deadline is
        # the nearest, ahead of those that are still to come.
        until(is_full, "a queue that no worker takes from")
        before = given_up()
        with pytest.raises(bp.DeadlineExceeded):
            client.infer("staged", text=["late"], tag=[gate], timeout_s=0.3)
        until(lambda: given_up() > before, "the row's end as late")
        open_gate(pool, gate)
        for future in busy:
            future.result(PATIENCE_S)
    assert batches(pool, "run", gate) == 0


def test_status_and_metrics_tell_the_stages_apart(pool: Pool, client: bp.Client) -> None:
    before = pool.tally("staged")["stages"]
    client.infer("staged", text=["a", "b", "c"])
    tally = pool.tally("staged")
    stages = tally["stages"]
    for name in ("preprocess", "infer"):
        until(lambda: pool.tally("staged")["stages"][name]["workers"] == "2/2", f"warm {name}")  # noqa: B023
        assert stages[name]["rows"] == before[name]["rows"] + 3
    assert (stages["preprocess"]["max_batch"], stages["infer"]["max_batch"]) == (4, 8)
    assert stages["preprocess"]["queue_p50_ms"] is not None
    text = ask(pool, "/metrics").body.decode()
    for stage in ("preprocess", "infer"):
        assert f'batchpool_queue_rows{{model="staged",stage="{stage}"}} 0.0' in text
        assert f'batchpool_process_up{{process="{"worker" if stage == "infer" else stage} 0' in text
    ok = 'batchpool_rows_ended_total{model="staged",reason="ok",stage="preprocess"} 0.0'
    assert ok in text, "a row that goes on has not ended"
