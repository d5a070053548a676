"""Requests that are kept as tasks, for the tests of tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.process.pool_under_test import Pool, until
from tests.process.web import Answer, ask

DTYPES = {"seconds": "FP32", "x": "FP64"}
ASYNC = {"Prefer": "respond-async"}
# Of an answer they differ each time, or belong to the task.
OWN_HEADERS = {"date", "x-request-id", "cache-control"}
ENDED = ("done", "failed", "cancelled")


def rows_body(**columns: list[Any]) -> bytes:
    """A request of the protocol's JSON: a column of values, or of rows, for each input."""
    inputs = []
    for name, values in columns.items():
        shape = [len(values)]
        if isinstance(values[0], list):
            shape.append(len(values[0]))
            values = [value for row in values for value in row]
        dtype = DTYPES.get(name, "INT64")
        inputs.append({"name": name, "datatype": dtype, "shape": shape, "data": values})
    return json.dumps({"inputs": inputs}).encode()


def probe_body(tag: int, gate: int = 0) -> bytes:
    """A row of the model Gated."""
    return rows_body(tag=[tag], seconds=[0.0], gate=[gate])


def submit(pool: Pool, model: str, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
    """The answer to a request that prefers to be answered later."""
    return ask(pool, f"/v2/models/{model}/infer", body, {**ASYNC, **(headers or {})})


def accepted(pool: Pool, model: str, body: bytes, headers: Mapping[str, str] | None = None) -> str:
    """The path of a task that was accepted."""
    answer = submit(pool, model, body, headers)
    assert answer.status == 202, answer
    return answer.headers["location"]


def state(pool: Pool, path: str, wait_s: float = 0) -> dict[str, Any]:
    """The state of a task."""
    answer = ask(pool, f"{path}?wait_s={wait_s:g}")
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.object
    return found


def ended(pool: Pool, path: str) -> dict[str, Any]:
    """The state of a task once it has ended."""
    found: dict[str, Any] = until(
        lambda: (now := state(pool, path, 10))["state"] in ENDED and now, f"the end of {path}"
    )
    return found


def result(pool: Pool, path: str, headers: Mapping[str, str] | None = None) -> Answer:
    """The result of a task, once it has one."""
    found: Answer = until(
        lambda: (
            (got := ask(pool, f"{path}/result?wait_s=10", headers=headers)).status != 202 and got
        ),
        f"the result of {path}",
    )
    return found


def tags(answer: Answer) -> list[int]:
    """The tags in an answer of the model Probe."""
    assert answer.status == 200, answer
    (found,) = [out["data"] for out in answer.object["outputs"] if out["name"] == "tag"]
    return list(found)
