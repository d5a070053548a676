"""Requests that are wrong, on every road: refused by name, and the next one is served."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pytest

import batchpool as bp
from tests.process.pool_under_test import PATIENCE_S, Pool, until
from tests.process.web import HEADER_LENGTH, Answer, ask, outputs

INFER = "/v2/models/affine/infer"
BOUND = 1843  # rows that may be under way at once: 0.9 of the 2,048 slots of `affine`
REPEATS, WARM = 4000, 1000
GROWS_BY_KIB = 2048  # about half a KiB for each of the repeats


def x_of(shape: Any, data: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, "data": data}]}


GOOD = x_of([1, 4], [1, 2, 3, 4])
X = GOOD["inputs"][0]

WRONG_JSON = [
    x_of([1, 4], [1, 2, 3]),
    x_of([1, 4], [1, 2, 3, 4, 5]),
    x_of([-1, 4], [1, 2, 3, 4]),
    x_of([0.5, 4], [1, 2]),
    x_of([2**62, 4], [1, 2, 3, 4]),
    x_of([2**62 + 1, 4], [1, 2, 3, 4]),  # 4 in 64-bit arithmetic
    x_of([1, 4], "1234"),
    x_of([1, 4], None),
    x_of([1, 4], [[1, 2], [3]]),
    x_of([1, 4], [1e39, 0, 0, 0]),
    x_of([0, 4], []),
    x_of([2, 0], []),
    x_of([0], []),
    {"inputs": []},
    {"inputs": [X, {**X, "data": [5, 6, 7, 8]}]},
]
WRONG_BINARY = [
    ([1, 4], 12), ([1, 4], 20), ([-1, 4], 16), ([2**62, 4], 16), ([2**62 + 1, 4], 16),
    ([0, 4], 0), ([2, 0], 0), ([0], 0),
]  # fmt: skip
WRONG_LOCAL: list[Any] = [
    np.zeros((1, 3), np.float32),
    np.zeros((1, 5), np.float32),
    np.zeros((0, 4), np.float32),
    np.zeros((2, 0), np.float32),
    np.zeros(0, np.float32),
    [[1, 2], [3]],
    [[1, 2, 3, 1e39]],
    "1234",
]


def post(pool: Pool, form: Any) -> Answer:
    return ask(pool, INFER, json.dumps(form).encode())


def post_binary(pool: Pool, shape: Any, size: int, model: str = "affine", **tensor: str) -> Answer:
    """A request of so many zero bytes."""
    named = {"name": "x", "datatype": "FP32", "shape": shape, **tensor}
    form = {"inputs": [{**named, "parameters": {"binary_data_size": size}}]}
    head = json.dumps(form).encode()
    headers = {HEADER_LENGTH: f"{len(head)}"}
    return ask(pool, f"/v2/models/{model}/infer", head + bytes(size), headers)


def pids_of(pool: Pool) -> list[int]:
    return [pool.pid, *(row["pid"] for row in pool.status()["processes"])]


@contextmanager
def served_rows(pool: Pool, rows: int, model: str = "affine") -> Iterator[None]:
    """Meanwhile the batcher gets exactly so many rows, and no process of the pool changes."""
    pids, before = pids_of(pool), pool.tally(model)["admitted"]
    yield
    assert pool.tally(model)["admitted"] - before == rows
    assert pids_of(pool) == pids
    until(lambda: not any(lane["claimed"] for lane in pool.status()["lanes"]), "free slots")


def test_a_wrong_tensor_is_refused_by_name_and_the_next_request_is_served(
    everyday: Pool, client: bp.Client
) -> None:
    """C01: JSON, binary and local, a good one after each; nothing wrong reaches the batcher, and
    no process is another one afterwards."""

    def refused_over_http(answer: Answer) -> None:
        assert answer.refused == (400, "invalid_request")
        assert "'x'" in answer.object["error"]

    def refused_locally(x: Any) -> None:
        with pytest.raises(bp.InvalidRequest, match="'x'"):
            client.infer("affine", x=x)

    wrong: list[Callable[[], None]] = [
        *(lambda form=form: refused_over_http(post(everyday, form)) for form in WRONG_JSON),
        *(lambda w=w: refused_over_http(post_binary(everyday, *w)) for w in WRONG_BINARY),
        *(lambda x=x: refused_locally(x) for x in WRONG_LOCAL),
    ]
    with served_rows(everyday, len(wrong)):
        for refuse in wrong:
            refuse()
            assert outputs(post(everyday, GOOD)) == {"y": [3, 5, 7, 9]}


@pytest.mark.parametrize("inputs", [{}, {"inputs": {}}, {"inputs": None}, {"inputs": "x"}])
def test_inputs_that_are_none(everyday: Pool, inputs: Any) -> None:
    """C01: a body without a list of inputs is told so."""
    with served_rows(everyday, 1):
        answer = post(everyday, inputs)
        assert answer.refused == (400, "invalid_request")
        assert answer.object["error"]
        assert outputs(post(everyday, GOOD)) == {"y": [3, 5, 7, 9]}


def test_rows_of_nothing_come_back_as_rows_of_nothing(everyday: Pool) -> None:
    """C05: where a size may be zero, so is the answer's; other rows are as ever."""
    ids = {"name": "ids", "datatype": "INT64"}
    form = {"inputs": [{**ids, "shape": [2, 0], "data": []}]}
    with served_rows(everyday, 6, "ragged"):
        for answer in (
            ask(everyday, "/v2/models/ragged/infer", json.dumps(form).encode()),
            post_binary(everyday, [2, 0], 0, "ragged", **ids),
        ):
            assert outputs(answer) == {"next": [], "sum": [0, 0]}
            found = {o["name"]: (o["shape"], o["datatype"]) for o in answer.object["outputs"]}
            assert found["next"] == ([2, 0], "INT64")
        answer = post_binary(everyday, [2, 1], 16, "ragged", **ids)
        assert outputs(answer) == {"next": [1, 1], "sum": [0, 0]}


def test_a_request_that_never_fits_holds_up_nobody(everyday: Pool, client: bp.Client) -> None:
    """C13: refused with the limit; the batcher never hears of it, and 20 behind it are served."""
    many = x_of([BOUND + 1, 4], [1] * 4 * (BOUND + 1))
    with served_rows(everyday, 20):
        answer = post(everyday, many)
        assert answer.refused == (413, "too_large")
        assert f"{BOUND}" in answer.object["error"]
        with pytest.raises(bp.TooLarge, match=r"922 rows.*921"):
            client.submit("affine", x=np.ones((922, 4), np.float32))
        for _ in range(20):
            assert outputs(post(everyday, GOOD)) == {"y": [3, 5, 7, 9]}


def memory_kib(pool: Pool) -> dict[int, int]:
    return {pid: psutil.Process(pid).memory_info().rss >> 10 for pid in pids_of(pool)}


def test_a_refusal_that_is_repeated_costs_no_memory(everyday: Pool) -> None:
    """C04: outputs that are not there, or asked for twice, thousands of times: no process grows."""
    twice = {**GOOD, "outputs": [{"name": "y"}, {"name": "y"}]}
    bodies = [json.dumps(form).encode() for form in (twice, {**GOOD, "outputs": [{"name": "no"}]})]
    said = ["'y' is asked for twice", "no output 'no'"]
    connection = http.client.HTTPConnection("127.0.0.1", everyday.port, timeout=PATIENCE_S)

    def ask_again(times: int) -> None:
        for i in range(times):
            connection.request("POST", INFER, bodies[i % 2])
            response = connection.getresponse()
            error = json.loads(response.read())["error"]
            assert response.status == 400
            assert said[i % 2] in error

    try:
        with served_rows(everyday, 0):
            ask_again(WARM)
            before = memory_kib(everyday)
            ask_again(REPEATS)
            after = memory_kib(everyday)
    finally:
        connection.close()
    grown = {pid: after[pid] - before[pid] for pid in before}
    assert all(kib < GROWS_BY_KIB for kib in grown.values()), grown
    assert outputs(post(everyday, GOOD)) == {"y": [3, 5, 7, 9]}
