"""Large JSON bodies, one behind the other: everybody else is answered meanwhile."""

from __future__ import annotations

import json

import pytest

from tests.process.callers import Callers
from tests.process.pool_under_test import Pool, serving
from tests.process.web import ask, outputs

INFER = "/v2/models/affine/infer"
ROWS = 512
DIGITS = 8000  # of each number: 16 MB of text in all
SENDERS = 3
QUESTIONS = 40
SMALL = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
).encode()


def large_body() -> bytes:
    """A right request, with many more digits than its numbers need."""
    number = "1." + "0" * DIGITS
    head = f'{{"inputs":[{{"name":"x","datatype":"FP32","shape":[{ROWS},4],"data":['
    return f"{head}{','.join([number] * 4 * ROWS)}]}}]}}".encode()


class Senders(Callers):
    """Callers that send the large body again and again."""

    enough = 1

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._body = large_body()
        super().__init__([self.send] * SENDERS)

    def send(self, number: int) -> None:
        while not self._stop.is_set():
            assert outputs(ask(self._pool, INFER, self._body)) == {"y": [3] * 4 * ROWS}
            self.count(number)


@pytest.mark.long
def test_large_json_bodies_keep_nobody_from_an_answer() -> None:
    """C30: health, metrics and small requests are served by the front end that has the bodies, and
    no process is taken for one that stands still."""
    paths = ("/v2/health/live", "/v2/health/ready", "/v2/models/affine/ready", "/metrics")
    with serving({"import": "Affine", "slots": 4096}, server={"max_bodies_mib": 1024}) as pool:
        with Senders(pool) as senders:
            for _ in range(QUESTIONS):
                for path in paths:
                    assert ask(pool, path).status == 200
                assert outputs(ask(pool, INFER, SMALL)) == {"y": [3, 5, 7, 9]}
            senders.await_more()
        assert senders.failures == []
        assert {row["restarts"] for row in pool.status()["processes"]} == {0}
