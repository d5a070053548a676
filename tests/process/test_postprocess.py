"""A model with three stages through a pool, and one that postprocesses only: right rows, errors of
single rows, deaths in the last stage, reload, end, metrics."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from tests.process.gates import open_gate, opened_at_last
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until
from tests.process.test_stages import batches, body_of, total, workers
from tests.process.web import ask

MODEL: dict[str, Any] = {
    "import": "tests.process.postprocess_models:Answered",
    "preprocess_workers": 1,
    "postprocess_workers": 2,
    "postprocess_max_batch": 4,
    "max_batch": 8,
    "attempts": 2,
}
LABELLED = {"import": "tests.process.postprocess_models:Labelled", "postprocess_workers": 1}
URL = "/v2/models/answered/infer"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with serving(MODEL, LABELLED) as pool:
        pool.tracebacks_expected = True  # of batches that fail on purpose
        yield pool


@pytest.fixture
def client(pool: Pool) -> Iterator[bp.Client]:
    with pool.client() as client:
        yield client


def last_stage(pool: Pool) -> dict[str, Any]:
    """The counts of postprocess: `rows` have been sent to its workers, `queued` have not."""
    found: dict[str, Any] = pool.tally("answered")["stages"]["postprocess"]
    return found


def test_rows_take_three_stages_each_in_its_own_processes(pool: Pool, client: bp.Client) -> None:
    texts = ["a", "", "b" * 64, *(f"text {i}" for i in range(40))]
    tags = list(range(1000, 1000 + len(texts)))
    found = client.infer("answered", text=texts, tag=tags)
    assert found["total"].tolist() == list(map(total, texts))
    assert found["tag"].tolist() == tags
    assert found["echo"].tolist() == [text.encode() for text in texts]
    known = workers(pool)
    pids = [set(each.tolist()) for each in found["pids"].T]
    assert pids[0] == {known["preprocess 0 of answered"]}
    assert pids[1] == {known["worker 0 of answered"]}
    assert pids[2] <= {known[f"postprocess {i} of answered"] for i in (0, 1)}


def test_callers_see_inputs_and_outputs_only(pool: Pool, client: bp.Client) -> None:
    seen = client.models()["answered"]
    assert [t.name for t in seen.outputs] == ["total", "tag", "pids", "versions", "echo"]
    told = ask(pool, "/v2/models/answered").object
    assert [t["name"] for t in told["inputs"]] == ["text", "tag"]
    assert [t["name"] for t in told["outputs"]] == ["total", "tag", "pids", "versions", "echo"]
    assert b"parts" not in ask(pool, "/openapi.json").body
    answer = ask(pool, URL, body_of("hello"))
    assert answer.status == 200
    assert {t["name"] for t in answer.object["outputs"]} == {t.name for t in seen.outputs}


def test_a_model_may_postprocess_only(pool: Pool, client: bp.Client) -> None:
    rows = np.array([[0, 1, 2], [5, 1, 2], [0, 9, 2]], np.float32)
    found = client.infer("labelled", x=rows)
    assert found["label"].tolist() == [b"cow", b"cat", b"dog"]
    assert found["score"].tolist() == [4.0, 10.0, 18.0]
    answer = ask(pool, "/v2/models/labelled/infer", json.dumps({"x": rows.tolist()}).encode())
    assert answer.object["label"] == ["cow", "cat", "dog"]
    stages = pool.tally("labelled")["stages"]
    assert list(stages) == ["infer", "postprocess"]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("post invalid", bp.InvalidInput, "no such answer"),
        ("post refused", bp.InvalidInput, "not this answer"),
        ("post value", bp.ModelError, "ValueError: too many values"),
        ("post wrong", bp.ModelError, "KeyError: 'label'"),
        ("post long", bp.ModelError, "echo"),
        ("post raise", bp.ModelError, "RuntimeError: this row raises"),
        ("post kill", bp.WorkerLost, "SIGKILL"),
        ("run kill", bp.WorkerLost, "SIGKILL"),
        ("pre refused", bp.InvalidInput, "not this text"),
    ],
)
def test_a_bad_row_ends_alone(
    client: bp.Client, text: str, error: type[Exception], message: str
) -> None:
    """Whatever shares its batches in any stage is answered."""
    futures = [client.submit("answered", text=[t]) for t in ("one", "two", text, "three", "four")]
    with pytest.raises(error, match=message):
        futures.pop(2).result(PATIENCE_S)
    found = [int(future.result(PATIENCE_S)["total"][0]) for future in futures]
    assert found == [total(t) for t in ("one", "two", "three", "four")]


def test_a_refusal_is_the_callers_fault_over_http(pool: Pool) -> None:
    answer = ask(pool, URL, body_of("fine", "post refused"))
    assert answer.status == 400
    said = answer.object
    assert (said["error"], said["details"], said["row"]) == ("not this answer", {"at": 7}, 1)
    assert ask(pool, URL, body_of("post value")).status == 500, "as in infer, not as in preprocess"


def test_attempts_count_for_each_stage(pool: Pool, client: bp.Client) -> None:
    """attempts = 2: a row outlives one death of a worker in each stage."""
    for number, stage in enumerate(("pre", "run", "post"), 21):
        found = client.infer("answered", text=[f"{stage} once {number}"], tag=[number])
        assert found["tag"].tolist() == [number]
    seen = [[batches(pool, stage, tag) for stage in ("pre", "run", "post")] for tag in (21, 22, 23)]
    assert seen == [[2, 1, 1], [1, 2, 1], [1, 1, 2]]


def test_a_batcher_that_succeeds_finds_rows_before_and_in_postprocess(
    pool: Pool, client: bp.Client
) -> None:
    tags = list(range(4100, 4124))
    with opened_at_last(pool, 41):
        futures = [client.submit("answered", text=["post gate 41"], tag=[tag]) for tag in tags]
        until(lambda: all(batches(pool, "run", tag) for tag in tags), "all predictions")
        until(lambda: any(batches(pool, "post", tag) for tag in tags), "a batch at the gate")
        (pid,) = pool.pids("batcher")
        os.kill(pid, signal.SIGKILL)
        until(lambda: pool.pids("batcher") not in ([], [pid]), "the next batcher")
        open_gate(pool, 41)
        assert [future.result(PATIENCE_S)["tag"].item() for future in futures] == tags
    for stage in ("pre", "run", "post"):
        assert [batches(pool, stage, tag) for tag in tags] == [1] * 24, stage


def test_a_deadline_passes_in_the_queue_of_postprocess(pool: Pool, client: bp.Client) -> None:
    """Both workers wait at the gate, and have as many batches in flight as they may."""
    until(lambda: last_stage(pool)["workers"] == "2/2", "both workers of postprocess")
    with opened_at_last(pool, 51):
        text = ["post gate 51"] * 8
        sent_before = last_stage(pool)["rows"]
        # More rows than both workers may have in flight.
        busy = [client.submit("answered", text=text, timeout_s=120) for _ in range(6)]

        def given_up() -> int:
            """A batcher that hears of the caller's end before its clock does counts a cancel."""
            tally = pool.tally("answered")
            return int(tally["expired"] + tally["cancelled"])

        def is_full() -> bool:
            """All rows are past `infer`, and more than a batch of them waits for a worker."""
            now = last_stage(pool)
            return now["queued"] == 48 - (now["rows"] - sent_before) > 4

        # Before, a worker with room for one more batch would take the late row, whose deadline is
        # the nearest, ahead of those that are still to come.
        until(is_full, "a queue that no worker takes from")
        before = given_up()
        with pytest.raises(bp.DeadlineExceeded):
            client.infer("answered", text=["late"], tag=[5151], timeout_s=0.5)
        until(lambda: given_up() > before, "the row's end as late")
        open_gate(pool, 51)
        for future in busy:
            future.result(PATIENCE_S)
    assert batches(pool, "post", 5151) == 0


def test_status_and_metrics_tell_the_stages_apart(pool: Pool, client: bp.Client) -> None:
    before = pool.tally("answered")["stages"]
    client.infer("answered", text=["a", "b", "c"])
    stages = pool.tally("answered")["stages"]
    assert list(stages) == ["preprocess", "infer", "postprocess"]
    for name in stages:
        assert stages[name]["rows"] == before[name]["rows"] + 3
    assert stages["postprocess"]["max_batch"] == 4
    assert stages["postprocess"]["queue_p50_ms"] is not None
    until(lambda: pool.tally("answered")["stages"]["postprocess"]["workers"] == "2/2", "both")
    text = ask(pool, "/metrics").body.decode()
    for stage in stages:
        assert f'batchpool_queue_rows{{model="answered",stage="{stage}"}} 0.0' in text
        ended = f'batchpool_rows_ended_total{{model="answered",reason="ok",stage="{stage}"}} '
        (line,) = [line for line in text.splitlines() if line.startswith(ended)]
        assert (float(line.removeprefix(ended)) > 0) == (stage == "postprocess"), line
    assert 'batchpool_process_up{process="postprocess 1 of answered"} 1.0' in text
