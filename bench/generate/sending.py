"""Requests of a load sent from one event loop, each when it is due; children that send loads."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import uvloop

from bench.generate.answers import Answer
from bench.generate.loads import Load, Request
from bench.support.children import obey, wait_until

MODEL = "story"
TIMEOUT_S = 600.0

Ask = Callable[[Request, Answer], Awaitable[None]]


def parameters(request: Request) -> dict[str, Any]:
    return {"max_tokens": request.tokens, **request.parameters}


async def sent(load: Load, ask: Ask) -> list[Answer]:
    """The answers to all requests of a load. ask: fills the answer to one request."""
    answers: list[Answer] = []
    under_way = asyncio.Semaphore(load.at_once or len(load.requests))
    begun_s = time.perf_counter()

    async def one(request: Request, answer: Answer) -> None:
        await ask(request, answer)
        under_way.release()

    async with asyncio.TaskGroup() as tasks:
        for number, request in enumerate(load.requests):
            if load.due_s:
                await asyncio.sleep(begun_s + load.due_s[number] - time.perf_counter())
            await under_way.acquire()
            answers.append(Answer(time.perf_counter()))
            tasks.create_task(one(request, answers[-1]))
    return answers


def obey_loads(send: Callable[[Load], Coroutine[Any, Any, list[Answer]]]) -> None:
    """The loop of a child that the run gives loads to (bench/support/children.py)."""

    def answer(message: dict[str, Any]) -> dict[str, Any]:
        requests = [Request(**each) for each in message["requests"]]
        load = Load(requests, message["at_once"], tuple(message["due_s"]))
        gc.collect()
        wait_until(int(message["begin_s"] * 1e9))
        found = uvloop.run(send(load))
        return {"answers": [(each.sent_s, each.tokens, each.came_s) for each in found]}

    obey(answer)
