"""Runs of the fuzzer: bodies go over HTTP to a front end, and every answer is checked.

A body that the reference decoder accepts must be answered 200 with the rows that it found; one that
it refuses, 400, 413 or 415. No answer may be a 5xx, and no connection may be closed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.fuzz.answers import Wrong, check, is_text
from tests.fuzz.models import MODELS
from tests.fuzz.mutate import mutated
from tests.fuzz.reference import meaning
from tests.fuzz.reference_tensors import Undecided
from tests.fuzz.valid import Body, valid
from tests.unit.frontend.frontend_double import Caller, RawAnswer, calling, edge, serving

_REFUSALS = (400, 413, 415)
_LANE_ROWS = 57  # of a lane of 64 slots
_SHOWN_BYTES = 200  # a description of a failure shows this much of a body


@dataclass
class Outcome:
    """The answers of a run. kinds: answers by status, "undecided" among them."""

    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


async def fuzz(
    seed: int,
    bodies: int,
    *,
    fast: bool = True,
    connections: int = 4,
    look: Callable[[int], None] = lambda done: None,
    most_failures: int = 20,
) -> Outcome:
    """Send so many bodies. look: called with the number of those that are done."""
    outcome = Outcome()
    numbers = iter(range(bodies))
    async with edge(*MODELS) as of, serving(of, fast=fast) as site:

        async def call() -> None:
            async with calling(site) as caller:
                for number in numbers:
                    dice = Random(f"{seed} {number}")
                    body = mutated(valid(dice), dice)
                    failure = await _one(caller, body, outcome)
                    if failure:
                        outcome.failures.append(f"body {number} of seed {seed}: {failure}\n{body}")
                        if len(outcome.failures) >= most_failures:
                            return
                    look(number + 1)

        await asyncio.gather(*(call() for _ in range(connections)))
    return outcome


async def _one(caller: Caller, body: Body, outcome: Outcome) -> str:
    """Send one body; returns what is wrong with its answer, or ""."""
    await caller.send(_written(body))
    try:
        answer = await caller.answer()
    except (asyncio.IncompleteReadError, ConnectionError):
        return "the connection was closed"
    outcome.kinds[str(answer.status)] += 1
    if answer.headers.get("connection") == "close":
        return "the connection is to be closed"
    try:
        found = meaning(body)
    except Undecided:
        outcome.kinds["undecided"] += 1
        return "" if answer.status in (200, *_REFUSALS) else f"status {answer.status}"
    if found is None:
        return "" if answer.status in _REFUSALS else f"{_shown(answer)}; a refusal was expected"
    if found.may_be_late and answer.status == 504:
        return ""
    if not is_text(body.model, found):
        return "" if answer.status == 400 else f"{_shown(answer)}; 400 for no UTF-8 was expected"
    if answer.status == 413 and len(next(iter(found.rows.values()))) > _LANE_ROWS:
        return ""  # more rows than the lane takes at once
    if answer.status != 200:
        return f"{_shown(answer)}; 200 was expected for {found}"
    try:
        check(body.model, found, answer)
    except Wrong as exc:
        return f"{exc} in {_shown(answer)}"
    return ""


def _shown(answer: RawAnswer) -> str:
    return f"status {answer.status} {answer.body[:_SHOWN_BYTES]!r}"


def _written(body: Body) -> bytes:
    fields = {"host": "fuzz", **body.headers, "content-length": str(len(body.content))}
    lines = [f"POST /v2/models/{body.model}/infer HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body.content
