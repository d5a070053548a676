"""Requests of a load sent from one event loop, each when it is due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.generate.answers import Answer
from bench.generate.loads import Load, Request

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
