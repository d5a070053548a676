"""Bounds of queues that stand full: the configured number comes in, time after time."""

from __future__ import annotations

import asyncio
from collections import Counter

import aiohttp
import pytest

from tests.process.gates import open_gate, opened_at_last
from tests.process.pool_under_test import Pool, serving, until
from tests.process.test_fairness import GATED, claimed, soon
from tests.process.test_http import infer_url, outputs, probe, tensor

FRONTENDS = 4
SLOTS = 40  # ten for each front end
BOUND = 36  # nine for each
CROWD = 160  # so many that each front end gets more than it may take, whatever the kernel's choice
ROUNDS = 4


class Crowd:
    """Callers over HTTP, each on a connection of its own. answers: how many of each status."""

    def __init__(self, pool: Pool, http: aiohttp.ClientSession, gate: int) -> None:
        self._url = infer_url(pool, "gated")
        self._http = http
        self._gate = gate
        self.answers: Counter[int] = Counter()

    async def ask(self, tag: int) -> None:
        form = probe([tag])
        form["inputs"].append(tensor("gate", "INT64", [self._gate]))
        async with self._http.post(self._url, json=form) as response:
            answer = await response.json()
            self.answers[response.status] += 1
            if response.status == 200:
                assert outputs(answer)["tag"].tolist() == [tag]
            else:
                assert answer["code"] == "overloaded"
                assert int(response.headers["Retry-After"]) >= 1

    async def refused_or_kept(self, tag: int, task: asyncio.Task[None], pool: Pool) -> None:
        """Until one request of several is refused, or has its slot."""
        before = claimed(pool)
        await soon(lambda: task.done() or claimed(pool) > before, f"request {tag}'s fate")


@pytest.mark.parametrize("one_by_one", [False, True])
def test_every_round_admits_the_bound_of_all_front_ends(one_by_one: bool) -> None:
    """C29: four front ends with a blocked worker, a burst or one request after another: as many
    come in each time, the others get 503, and nothing is left claimed."""

    async def round_of(pool: Pool, gate: int) -> Counter[int]:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as http:
            crowd = Crowd(pool, http, gate)
            tasks: list[asyncio.Task[None]] = []
            for tag in range(CROWD):
                tasks.append(asyncio.create_task(crowd.ask(tag)))
                if one_by_one:
                    await crowd.refused_or_kept(tag, tasks[-1], pool)
            await soon(lambda: crowd.answers.total() == CROWD - BOUND, "all refusals")
            await soon(lambda: claimed(pool) == BOUND, "the bound of each front end")
            assert crowd.answers == {503: CROWD - BOUND}
            open_gate(pool, gate)
            await asyncio.gather(*tasks)
            return crowd.answers

    model = {**GATED, "slots": SLOTS}
    rounds = range(1, 2 if one_by_one else ROUNDS + 1)  # each question takes its time
    with serving(model, server={"frontends": FRONTENDS}) as pool, opened_at_last(pool, *rounds):
        for gate in rounds:
            found = asyncio.run(round_of(pool, gate))
            assert found == {200: BOUND, 503: CROWD - BOUND}
            until(lambda: claimed(pool) == 0, "free slots")
        assert pool.tally("gated")["admitted"] == len(rounds) * BOUND
