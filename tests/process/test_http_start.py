"""From the first moment on: what is accepted is answered, and ready is said when it is true."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.process.pool_under_test import PATIENCE_S, Pool, started, until
from tests.process.web import Answer, ask, outputs

X = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
).encode()
READY, MODEL_READY = "/v2/health/ready", "/v2/models/loadwaits/ready"
INFER = "/v2/models/loadwaits/infer"


class Watch:
    """Asks a starting pool again and again. A refused connection counts, a lost one is a fault."""

    def __init__(self, pool: Pool, question: Callable[[Pool], Answer]) -> None:
        self.answers: list[Answer] = []
        self.faults: list[BaseException] = []
        self.over = False
        self._thread = threading.Thread(target=self._run, args=(pool, question))
        self._thread.start()

    def _run(self, pool: Pool, question: Callable[[Pool], Answer]) -> None:
        while not self.over:
            try:
                self.answers.append(question(pool))
            except ConnectionRefusedError:
                assert not self.answers, "it listened before"
            except (OSError, http.client.HTTPException) as exc:
                self.faults.append(exc)

    def end(self) -> list[Answer]:
        self.over = True
        self._thread.join(PATIENCE_S)
        assert self.faults == []
        return self.answers


@pytest.fixture
def pool() -> Any:
    with started("LoadWaits") as pool:
        yield pool


def test_early_requests_are_answered_fast_and_ready_means_served(pool: Pool) -> None:
    """C38: 503 from the first connection on until the model is warm, and then the next one is
    served; both kinds of readiness turn once and stay."""
    ready = Watch(pool, lambda pool: ask(pool, READY))
    early = Watch(pool, lambda pool: ask(pool, INFER, X))
    try:
        until(lambda: len(ready.answers) > 20 and len(early.answers) > 20, "early answers")
        assert {answer.status for answer in ready.answers} == {503}
        assert {answer.refused for answer in early.answers} == {(503, "not_ready")}
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in early.answers)
        assert ask(pool, MODEL_READY).status == 503
        assert ask(pool, "/v2/health/live").status == 200
        (pool.notes / "load").touch()
        until(lambda: ask(pool, READY).status == 200, "readiness")
        assert outputs(ask(pool, INFER, X)) == {"y": [3, 5, 7, 9]}
        assert ask(pool, MODEL_READY).status == 200
        served = len(early.answers)
        until(lambda: len(early.answers) > served + 20, "answers of a ready pool")
        until(lambda: ready.answers[-1].status == 200, "the other thread's word for it")
    finally:
        statuses = [answer.status for answer in ready.end()], [a.status for a in early.end()]
    for found in statuses:
        turn = found.index(200)
        assert found == [503] * turn + [200] * (len(found) - turn)
