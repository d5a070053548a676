"""The rest of a call whose model was replaced after some of its rows had run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from batchpool.client.aio import AsyncClient
from batchpool.client.call import Call
from batchpool.client.lane_client import LaneClient
from batchpool.client.session import ModelFacts
from batchpool.client.sync import Client
from batchpool.core.errors import Moved, PoolError, WorkerLost
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec, Tensor
from tests.unit.client.lane_clients import new_lane_client
from tests.unit.lanes import new_lane
from tests.unit.specs import AFFINE

OTHER = replace(AFFINE, outputs=(Tensor("z", "float32", (4,)),))
X = np.ones((6, 4), np.float32)


def call_of(*, idempotent: bool = True) -> Call:
    facts = ModelFacts(0, AFFINE, 0.9, 30.0, 8, idempotent=idempotent)
    return Call.of(new_lane_client(), facts, {"x": X}, None, None, None, 0)


class Way:
    """The lanes that the model has, one after the other. runs: of which calls of `_run` are."""

    def __init__(self, specs: Iterable[ModelSpec], moved: int) -> None:
        self._lane_clients = [LaneClient(new_lane(spec, 8)) for spec in specs]
        self._moved = moved  # so many of them have moved before anything is sent there
        self.runs: list[tuple[LaneClient, int]] = []

    def lane_client(self) -> LaneClient:
        return self._lane_clients.pop(0)

    def run(self, lane_client: LaneClient, call: Call) -> list[dict[str, Array]]:
        self.runs.append((lane_client, call.rows.n))
        if len(self.runs) <= self._moved:
            raise Moved("send it again")
        return [{"y": call.rows.tensors["x"]}]


class Plain(Client):
    def __init__(self, way: Way) -> None:
        self.way = way

    def _let_go(self) -> None:
        pass

    def _lane_client_of(self, model: str) -> LaneClient:
        return self.way.lane_client()

    def _run(self, lane_client: LaneClient, call: Call) -> list[dict[str, Array]]:
        return self.way.run(lane_client, call)


class Awaitable(AsyncClient):
    def __init__(self, way: Way) -> None:
        self.way = way
        session = SimpleNamespace(let_go=lambda: None)
        self.client_loop = cast(Any, SimpleNamespace(session=session))

    async def _usable(self) -> Any:
        return self.client_loop

    async def _lane_client(self, model: str) -> tuple[Any, LaneClient]:
        return self.client_loop, self.way.lane_client()

    async def _run(
        self, client_loop: Any, lane_client: LaneClient, call: Call, *, wait: bool
    ) -> list[dict[str, Array]]:
        return self.way.run(lane_client, call)


def run_rest(kind: str, way: Way, call: Call) -> list[dict[str, Array]]:
    if kind == "sync":
        return Plain(way)._run_rest(new_lane_client(), call)
    return asyncio.run(Awaitable(way)._run_rest(new_lane_client(), call, True))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_it_goes_on_from_lane_to_lane_and_no_row_runs_twice(kind: str) -> None:
    way = Way([AFFINE, AFFINE], moved=1)
    (found,) = run_rest(kind, way, call_of(idempotent=False).rest(4))
    assert found["y"].tolist() == X[4:].tolist()
    assert [n for _, n in way.runs] == [2, 2]


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    ("idempotent", "kind_of_error", "text"),
    [
        (True, Moved, "has other tensors now"),
        (False, WorkerLost, "before the last 2 rows of this call were sent; the others have run"),
    ],
)
def test_what_does_not_go_together_begins_anew_unless_rows_may_not_run_twice(
    kind: str, idempotent: bool, kind_of_error: type[PoolError], text: str
) -> None:
    way = Way([AFFINE, OTHER], moved=1)
    with pytest.raises(kind_of_error, match=text):
        run_rest(kind, way, call_of(idempotent=idempotent).rest(4))
    assert len(way.runs) == 1, "nothing is sent where its answers would not fit"
