"""One line: its attempts, and the error that is its answer in the end."""

from __future__ import annotations

import asyncio
import json

import pytest

from batchpool.batches.line_runner import LineRunner
from batchpool.batches.records import MOVES, BatchStatus
from batchpool.core.errors import InvalidRequest, ModelError, NotReady, PoolError
from batchpool.tasks.judgement import judge
from batchpool.wire.batch_lines import BatchLine
from tests.unit.batches.desk import ENDPOINT


class Failing:
    """Calls that end with these errors, one after the other, and then well."""

    def __init__(self, *errors: PoolError) -> None:
        self._errors = list(errors)

    async def answer(self, endpoint: str, body: bytes) -> bytes:
        if self._errors:
            raise self._errors.pop(0)
        return b"{}"


@pytest.mark.parametrize(
    ("errors", "status"),
    [
        ([], 200),
        ([NotReady("a moment")] * 30, 200),
        ([ModelError("once")], 200),
        ([ModelError("again"), NotReady("a moment"), ModelError("and again")], 500),
        ([InvalidRequest("never")], 400),
    ],
)
def test_the_pools_weather_is_waited_out_and_faults_are_answers(
    monkeypatch: pytest.MonkeyPatch, errors: list[PoolError], status: int
) -> None:
    async def no_wait(seconds: float) -> None:
        assert seconds > 0

    monkeypatch.setattr("batchpool.batches.line_runner.asyncio.sleep", no_wait)
    runner = LineRunner(Failing(*errors), judge, attempts=2)
    end = asyncio.run(runner.run(ENDPOINT, BatchLine("a", b"{}")))
    assert (end.status, end.is_good) == (status, status == 200)
    if status != 200:
        assert json.loads(end.body)["error"]["message"] == errors[-1].message


def test_moves_of_a_batch_end_where_they_should() -> None:
    for status, after in MOVES.items():
        assert status not in after
        assert status.has_ended == (not after)
    ended = {status for status in BatchStatus if status.has_ended}
    assert ended == {"completed", "failed", "expired", "cancelled"}
