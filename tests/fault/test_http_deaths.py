"""Worker deaths as HTTP callers meet them: they take time, and no more."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from typing import Any

import aiohttp
import pytest

import batchpool as bp
from tests.fault.ledger import ledger_table, open_gate, runs, tags_of
from tests.fault.test_worker_deaths import restarts, serves_again
from tests.process.pool_under_test import Pool, serving, until
from tests.process.test_http import connections, infer_url, outputs, probe

CALLERS = 16
KILLS = 3
PAUSE_S = 0.005  # between two calls of one caller


class Callers:
    """HTTP callers without a pause, every answer checked, until `stop` is set."""

    def __init__(self, pool: Pool) -> None:
        self.url = infer_url(pool, "probe")
        self.answered = 0
        self.refused: Counter[tuple[int, str]] = Counter()
        self.stop = False

    async def call(self, http: aiohttp.ClientSession, first: int) -> None:
        tag = first
        while not self.stop:
            tag += CALLERS
            async with http.post(self.url, json=probe([tag], 0.002)) as response:
                answer = await response.json(content_type=None)
                if response.status == 200:
                    assert outputs(answer)["tag"].tolist() == [tag]
                    self.answered += 1
                else:
                    self.refused[response.status, answer["code"]] += 1
            await asyncio.sleep(PAUSE_S)

    async def answered_again(self, more: int) -> None:
        goal = self.answered + more
        await asyncio.to_thread(until, lambda: self.answered >= goal, "more answers")


@pytest.mark.long
def test_the_only_worker_killed_under_http_load() -> None:
    """C31: requests that come while the next one starts wait for it; none is refused."""

    async def work() -> Callers:
        callers = Callers(pool)
        async with connections(CALLERS) as http:
            tasks = [asyncio.create_task(callers.call(http, i)) for i in range(CALLERS)]
            try:
                for kill in range(KILLS):
                    await callers.answered_again(100)
                    os.kill(pool.pids("worker")[0], signal.SIGKILL)
                    await asyncio.to_thread(until, lambda: restarts(pool) == kill + 1, "its end")  # noqa: B023
                    await asyncio.to_thread(serves_again, pool, "probe", 1)
                await callers.answered_again(100)
            finally:
                callers.stop = True
                await asyncio.gather(*tasks)
        return callers

    with serving({"import": "Probe", "max_batch": 8}) as pool:
        callers = asyncio.run(work())
        assert callers.refused == Counter()
        assert restarts(pool) == KILLS
        assert pool.zombies() == []
        tally = pool.tally("probe")
        assert tally["lost"] == tally["failed"] == 0
        until(lambda: not any(lane["claimed"] for lane in pool.status()["lanes"]), "free slots")


def test_sixty_four_sent_together_one_of_which_kills_the_only_worker() -> None:
    """Each row gets its answer: those that came with the killer, and those that came later."""

    async def ask(http: aiohttp.ClientSession, tag: int) -> tuple[int, Any]:
        body = {"inputs": [
            {"name": "tag", "datatype": "INT64", "shape": [1], "data": [tag]},
            {"name": "poison", "datatype": "INT64", "shape": [1], "data": [2 * (tag == 30)]},
        ]}  # fmt: skip
        async with http.post(infer_url(pool, "poison"), json=body) as response:
            answer = await response.json(content_type=None)
            if response.status == 200:
                return 200, outputs(answer)["tag"].tolist()
            return response.status, answer["code"]

    async def ask_together() -> list[tuple[int, Any]]:
        async with connections(64) as http:
            await ask(http, 1)
            return await asyncio.gather(*(ask(http, tag) for tag in range(1, 65)))

    model = {"import": "tests.fault.models:Poison", "max_batch": 8, "max_wait_ms": 1}
    with serving(model) as pool:
        ends = asyncio.run(ask_together())
        assert ends.pop(29) == (500, "worker_lost")
        assert ends == [(200, [tag]) for tag in range(1, 65) if tag != 30]


def test_the_other_workers_callers_see_nothing_of_a_death() -> None:
    """C31: a row of the dead one is run once more, and nobody else's is."""
    deaths = [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT]
    model = ledger_table(workers_per_device=2, max_batch=1)
    with serving(model) as pool, pool.client() as client:
        until(lambda: both_have_run(pool, client), "rows of this client in both workers")
        before = len(runs(pool))
        for gate, death in enumerate(deaths, 1):
            tags = {10 * gate, 10 * gate + 1}
            answers: list[list[int]] = []
            futures = {tag: client.submit("ledger", row=[[tag, gate]]) for tag in tags}
            for future in futures.values():
                future.add_done_callback(lambda f, a=answers: a.append(tags_of(f)))
            until(lambda: len(runs(pool)) == before + 3 * gate - 1, "both rows' start")  # noqa: B023
            victim, other = runs(pool)[-2:]
            assert {*victim.tags, *other.tags} == tags
            os.kill(victim.pid, death)
            until(lambda: len(runs(pool)) == before + 3 * gate, "another try")  # noqa: B023
            again = runs(pool)[-1]
            assert again.tags == victim.tags
            assert again.pid not in (victim.pid, other.pid), "the other one is busy"
            open_gate(pool, gate)
            assert {tag: tags_of(future) for tag, future in futures.items()} == {
                tag: [tag] for tag in tags
            }
            until(lambda: len(answers) == 2, "both callbacks")  # noqa: B023
            assert len(runs(pool)) == before + 3 * gate, "a row was run again"
            assert other.pid in pool.pids("worker")
            serves_again(pool, "ledger", 2)
        assert restarts(pool) == len(deaths)
        assert pool.zombies() == []


def both_have_run(pool: Pool, client: bp.Client) -> bool:
    """Until a worker has mapped a new lane the other one gets all its rows."""
    client.infer("ledger", row=[[1, 0]] * 8)
    return {run.pid for run in runs(pool)} == {*pool.pids("worker")}
