"""Clients that die in every way leave nothing with the pool: no slot, descriptor or mapping."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from tests.process.pool_under_test import ROOT, Pool, serving, until
from tests.process.short_lives import KINDS, ROWS

ROUNDS = 7  # with 8 kinds 56 clients, and most of 50 lanes full of slots lost


def live(pool: Pool, rounds: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-Werror", "-m", "tests.process.short_lives", pool.socket, str(rounds)],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def counts(pool: Pool, key: str) -> dict[str, Any]:
    return {name: model[key] for name, model in pool.status()["models"].items()}


def test_fifty_short_lives_leave_nothing_behind() -> None:
    with serving("Affine", "Special", "Slow") as pool:
        live(pool, 1)  # what is allocated once, is allocated now
        until(lambda: not pool.lanes(), "the return of every lane")
        before, special = pool.holdings(), counts(pool, "rows")["special"]
        live(pool, ROUNDS)
        until(lambda: not pool.lanes(), "the return of every lane")
        until(lambda: pool.holdings() == before, "the descriptors and mappings of before")
        # One warm row each; what was written and never published was never run.
        assert counts(pool, "rows")["special"] - special == ROUNDS
        admitted, completed = counts(pool, "admitted"), counts(pool, "completed")
        assert admitted["affine"] >= ROUNDS * 3 * ROWS
        assert completed["special"] == admitted["special"]
        assert len(KINDS) * ROUNDS > 50
        assert [row["restarts"] for row in pool.status()["processes"]] == [0] * 6
