"""Clients that die in every way leave nothing with the pool: no slot, descriptor or mapping."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.process.pool_under_test import Pool, serving, shm_names, until
from tests.process.short_lives import KINDS, MODELS, ROWS, live
from tests.process.web import ask, outputs

ROUNDS = 3  # in each of two parents; with 9 kinds 54 clients, and most of 50 lanes of slots lost
SOON_S = 5.0  # a lane comes back in milliseconds; what a busy machine may add
X = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}'


def live_and_serve(pool: Pool, rounds: int) -> None:
    assert live(pool.socket, rounds) < SOON_S
    assert outputs(ask(pool, "/v2/models/affine/infer", X)) == {"y": [3, 5, 7, 9]}


def counts(pool: Pool, key: str) -> dict[str, Any]:
    return {name: model[key] for name, model in pool.status()["models"].items()}


def no_more(now: dict[int, tuple[int, int]], before: dict[int, tuple[int, int]]) -> bool:
    """True if these processes hold at most what they held before."""
    return now.keys() == before.keys() and all(
        held <= before[pid][i] for pid in now for i, held in enumerate(now[pid])
    )


@pytest.mark.interpreted
@pytest.mark.long
def test_a_short_life_of_each_kind_takes_nothing_along() -> None:
    """C43, C47: clients that end well, by an exception, by sys.exit and by signals, most of them
    with nearly all of a lane's slots: the next ones attach, and nothing in /dev/shm changes."""
    with serving(*MODELS) as pool:
        names = shm_names()
        live_and_serve(pool, 1)
        until(lambda: not pool.lanes(), "the return of every lane")
        assert shm_names() == names
        assert counts(pool, "rows")["special"] == 1, "a row was run that was never published"
        with pool.client() as client:
            x = np.ones((ROWS, 4), np.float32)
            assert (client.infer("affine", x=x)["y"] == 3).all()
        assert [row["restarts"] for row in pool.status()["processes"]] == [0] * 6


@pytest.mark.long
@pytest.mark.interpreted
def test_fifty_short_lives_leave_nothing_behind() -> None:
    """C43, C47: whatever way its clients end, also with a child that lives on, the pool keeps its
    segments and gets back every slot; what was written and never published is never run."""
    with serving(*MODELS) as pool:
        live_and_serve(pool, 1)  # what is allocated once, is allocated now
        until(lambda: not pool.lanes(), "the return of every lane")
        before, special, names = pool.holdings(), counts(pool, "rows")["special"], shm_names()
        for _ in range(2):
            live_and_serve(pool, ROUNDS)
        until(lambda: not pool.lanes(), "the return of every lane")
        until(lambda: no_more(pool.holdings(), before), "the descriptors and mappings of before")
        assert shm_names() == names
        # One warm row each; what was written and never published was never run.
        assert counts(pool, "rows")["special"] - special == 2 * ROUNDS
        admitted, completed = counts(pool, "admitted"), counts(pool, "completed")
        assert admitted["affine"] >= 2 * ROUNDS * 4 * ROWS
        assert completed["special"] == admitted["special"]
        assert len(KINDS) * 2 * ROUNDS > 50
        assert [row["restarts"] for row in pool.status()["processes"]] == [0] * 6
