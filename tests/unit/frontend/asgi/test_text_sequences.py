"""The sequences of one request: room, errors, and the order of parts."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import Overloaded, PoolError, WorkerLost
from batchpool.frontend.asgi.text_sequences import TextPart, TextSequences
from batchpool.text.generated_text import GeneratedText
from batchpool.text.incremental_decoder import IncrementalDecoder
from tests.unit.frontend.loops import on_loop, until


class _Sequence:
    """A sequence whose tokens the test gives; an error or None ends it."""

    def __init__(self) -> None:
        self.coming: asyncio.Queue[list[int] | PoolError | None] = asyncio.Queue()
        self.finish_reason: str | None = None
        self.cancelled = False
        self.tokens = np.array([])

    def give(self, *letters: str) -> None:
        self.coming.put_nowait([ord(letter) for letter in letters])

    def end(self, reason: str = "length") -> None:
        self.finish_reason = reason
        self.coming.put_nowait(None)

    async def next_tokens(self) -> Any:
        found = await self.coming.get()
        if isinstance(found, PoolError):
            raise found
        return None if found is None else np.array(found)

    def cancel(self) -> None:
        self.cancelled = True
        self.coming.put_nowait(None)


class _Lane:
    """Sequences of a lane with room for some."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.begun: list[_Sequence] = []
        self.all_begun = 0

    def start(self, prompt: Any) -> _Sequence:
        if len(self.begun) >= self.room:
            raise Overloaded("full")
        self.begun.append(_Sequence())
        return self.begun[-1]

    def sequences(self, count: int, *stops: str) -> TextSequences:
        def decode(tokens: Any) -> str:
            return "".join(map(chr, tokens))

        def note() -> None:
            self.all_begun += 1

        def generated() -> GeneratedText:
            return GeneratedText(IncrementalDecoder(decode, ()), stops)

        return TextSequences([np.array([1])] * count, self.start, generated, note)


async def read(sequences: TextSequences, found: list[list[TextPart]]) -> None:
    async for parts in sequences.parts(sequences.begin()):
        found.append(parts)


def reading(sequences: TextSequences) -> tuple[asyncio.Task[None], list[list[TextPart]]]:
    found: list[list[TextPart]] = []
    return asyncio.create_task(read(sequences, found)), found


@on_loop
async def test_the_parts_of_one_text() -> None:
    lane = _Lane(1)
    sequences = lane.sequences(1)
    task, found = reading(sequences)
    await until(lambda: bool(lane.begun), "it has begun")
    lane.begun[0].give("a", "b")
    await until(lambda: len(found) == 1, "a part")
    lane.begun[0].give("c")
    lane.begun[0].end()
    await task
    assert found == [
        [TextPart(0, "ab", True, "")],
        [TextPart(0, "c", False, "")],
        [TextPart(0, "", False, "length")],
    ]
    assert (sequences.completion_tokens, lane.all_begun) == (3, 1)


@on_loop
async def test_others_have_their_turn_while_many_tokens_become_text() -> None:
    lane = _Lane(1)
    task, found = reading(lane.sequences(1, "no such text"))
    await until(lambda: bool(lane.begun), "it has begun")
    turns: list[int] = []

    async def other() -> None:
        while not task.done():
            turns.append(sum(len(part.text) for parts in found for part in parts))
            await asyncio.sleep(0)

    lane.begun[0].give(*"ab" * 1500)
    lane.begun[0].end()
    await asyncio.gather(task, other())
    assert "".join(part.text for parts in found for part in parts) == "ab" * 1500
    shown = sorted(set(turns))
    assert max(b - a for a, b in pairwise(shown)) <= 256
    assert [part.is_first for parts in found for part in parts].count(True) == 1


@on_loop
async def test_prompts_that_find_no_room_wait_for_those_before_them() -> None:
    lane = _Lane(2)
    task, found = reading(lane.sequences(3))
    await until(lambda: len(lane.begun) == 2, "two have begun")
    assert lane.all_begun == 0
    lane.room = 3
    lane.begun[1].give("x")
    lane.begun[1].end()
    await until(lambda: len(lane.begun) == 3, "the third has begun")
    assert lane.all_begun == 1
    for number in (0, 2):
        lane.begun[number].end("stop")
    await task
    reasons = [(part.number, part.finish_reason) for parts in found for part in parts]
    assert [each for each in reasons if each[1]] == [(1, "length"), (0, "stop"), (2, "stop")]


@on_loop
async def test_the_first_prompt_does_not_wait() -> None:
    with pytest.raises(Overloaded):
        _Lane(0).sequences(2).begin()


@on_loop
async def test_the_error_of_one_ends_all() -> None:
    lane = _Lane(3)
    task, found = reading(lane.sequences(3))
    await until(lambda: len(lane.begun) == 3, "all have begun")
    lane.begun[0].give("a")
    await until(lambda: len(found) == 1, "a part")
    lane.begun[1].coming.put_nowait(WorkerLost("one"))
    lane.begun[2].coming.put_nowait(WorkerLost("two"))
    with pytest.raises(WorkerLost, match=r"one|two"):
        await task


@on_loop
async def test_a_stop_string_takes_its_own_sequence_back() -> None:
    lane = _Lane(2)
    sequences = lane.sequences(2, "b")
    task, found = reading(sequences)
    await until(lambda: len(lane.begun) == 2, "both have begun")
    lane.begun[0].give("a", "b", "c")
    await until(lambda: lane.begun[0].cancelled, "it is taken back")
    assert not lane.begun[1].cancelled
    lane.begun[1].give("x")
    lane.begun[1].end()
    await task
    first = [part for parts in found for part in parts if part.number == 0]
    assert first == [TextPart(0, "a", True, "stop")]
    assert sequences.completion_tokens == 3


@pytest.mark.parametrize("count", [1, 2])
@on_loop
async def test_cancel_ends_the_parts_without_a_reason(count: int) -> None:
    lane = _Lane(2)
    sequences = lane.sequences(count)
    task, found = reading(sequences)
    await until(lambda: len(lane.begun) == count, "all have begun")
    sequences.cancel()
    await task
    assert found == []
    assert all(each.cancelled for each in lane.begun)
    assert sequences.given_up
