"""A caller's mistake is the caller's: rows that a model refuses cost nobody else anything."""

from __future__ import annotations

import json
from typing import Any

import pytest

import batchpool as bp
from tests.fault.test_poison import calls, table
from tests.fault.test_worker_deaths import restarts
from tests.process.pool_under_test import PATIENCE_S, Pool, serving
from tests.process.web import ask

NAMED, LISTED, RAISED, FAULT, BREAKS = 1, 2, 3, 4, 5
BAD = set(range(3, 100, 7))  # 14 of 100


def outcomes(pool: Pool) -> dict[str, Any]:
    tally = pool.tally("picky")
    return {name: tally[name] for name in ("invalid", "retried", "failed", "lost")}


@pytest.mark.parametrize("how", [NAMED, LISTED])
def test_fourteen_bad_rows_among_a_hundred_run_once_and_alone_are_refused(how: int) -> None:
    with serving(table("Picky", max_batch=128)) as pool, pool.client() as client:
        futures = [
            client.submit("picky", tag=[i + 1], how=[how * (i in BAD)], timeout_s=25)
            for i in range(100)
        ]
        for i, future in enumerate(futures):
            if i not in BAD:
                assert future.result(PATIENCE_S)["text"].tolist() == [str(i + 1).encode()]
                continue
            error = future.exception(PATIENCE_S)
            assert isinstance(error, bp.InvalidInput)
            assert str(error) == f"tag {i + 1} is not wanted"
            assert (error.details, error.row) == ({"tag": i + 1}, None)
        assert outcomes(pool) == {"invalid": 14, "retried": 0, "failed": 0, "lost": 0}
        assert calls(pool) == pool.tally("picky")["batches"], "no row ran again"
        assert restarts(pool) == 0


def test_rows_that_raise_their_refusal_are_found_alone_and_count_as_no_failure() -> None:
    with serving(table("Picky", attempts=1)) as pool, pool.client() as client:
        futures = [
            client.submit("picky", tag=[i + 1], how=[RAISED * (i in (5, 40))], timeout_s=25)
            for i in range(64)
        ]
        for i, future in enumerate(futures):
            error = future.exception(PATIENCE_S)
            if i in (5, 40):
                assert isinstance(error, bp.InvalidInput)
                assert str(error) == f"tag {i + 1} is not wanted"
            else:
                assert error is None
        assert outcomes(pool)["invalid"] == 2
        assert outcomes(pool)["failed"] == outcomes(pool)["lost"] == restarts(pool) == 0


def test_a_model_that_refuses_every_row_for_long_is_not_restarted() -> None:
    with serving(table("Picky", max_wait_ms=0)) as pool, pool.client() as client:
        for i in range(30):
            with pytest.raises(bp.InvalidRequest, match=f"tag {i + 1} is not wanted"):
                client.infer("picky", tag=[i + 1], how=[RAISED])
        assert (outcomes(pool)["failed"], restarts(pool)) == (0, 0)


def request(*rows: tuple[int, int]) -> bytes:
    inputs = [
        {"name": name, "shape": [len(rows)], "datatype": "INT64", "data": [row[i] for row in rows]}
        for i, name in enumerate(("tag", "how"))
    ]
    return json.dumps({"inputs": inputs}).encode()


@pytest.mark.parametrize("how", [NAMED, LISTED, RAISED])
def test_over_http_a_refusal_is_400_with_the_models_text(how: int) -> None:
    with serving(table("Picky", max_wait_ms=0, batch_sizes=[4])) as pool:
        url = "/v2/models/picky/infer"
        lone = ask(pool, url, request((9, how)))
        assert lone.status == 400
        assert json.loads(lone.body) == {
            "error": "tag 9 is not wanted",
            "code": "invalid_request",
            "details": {"tag": 9},
        }
        several = ask(pool, url, request((1, 0), (2, 0), (3, how)))
        assert several.status == 400
        assert json.loads(several.body) == {
            "error": "tag 3 is not wanted",
            "code": "invalid_request",
            "row": 2,
            "details": {"tag": 3},
        }
        assert ask(pool, url, request((1, 0), (2, 0))).status == 200
        assert outcomes(pool)["failed"] == restarts(pool) == 0


def test_a_model_that_fails_for_its_warm_up_row_too_is_left_and_only_who_broke_it_loses() -> None:
    with serving(table("Picky", max_wait_ms=0)) as pool, pool.client() as client:
        pool.tracebacks_expected = True
        with pytest.raises(bp.ModelError, match="a fault of the model"):
            client.infer("picky", tag=[1], how=[BREAKS], timeout_s=60)
        found = client.infer("picky", tag=[8], how=[0], timeout_s=60)
        assert found["tag"].tolist() == [8], "it met a broken model, and ran again in a new worker"
        assert restarts(pool) == 2
        (worker,) = [row for row in pool.status()["processes"] if row["name"].startswith("worker")]
        assert worker["last_error"] == (
            "2 batches failed in a row, and the warm-up row too: ValueError: a fault of the model"
        )
