"""The text of one sequence whose pieces are pushed: the end at a stop string."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from batchpool.frontend.asgi.sequence_text import SequenceText
from batchpool.text.generated_text import GeneratedText
from batchpool.text.incremental_decoder import IncrementalDecoder
from tests.unit.frontend.loops import on_loop


class _Sequence:
    """A sequence of letters. cancelled: how often; more letters may have been made by then."""

    tokens, finish_reason = np.array([]), None

    def __init__(self) -> None:
        self.cancelled = 0
        self.made: asyncio.Queue[Any] = asyncio.Queue()
        self.push: Any = None

    def push_to(self, may_push: Any, push: Any) -> None:
        self.push = push

    async def next_tokens(self) -> Any:
        return await self.made.get()

    def cancel(self) -> None:
        self.cancelled += 1
        self.made.put_nowait(None)


def letters(text: str) -> Any:
    return np.array([ord(letter) for letter in text])


def text_of(sequence: _Sequence, *stops: str) -> SequenceText:
    def decode(tokens: Any) -> str:
        return "".join(map(chr, tokens))

    return SequenceText(sequence, GeneratedText(IncrementalDecoder(decode, ()), stops))


@on_loop
async def test_a_stop_string_that_was_pushed_ends_the_text_before_all_that_came_later() -> None:
    sequence, pushed = _Sequence(), list[str]()
    text = text_of(sequence, "x")
    text.push_to(lambda n: True, pushed.append)
    reading = asyncio.create_task(text.next_piece())
    await asyncio.sleep(0)
    sequence.push(letters("ab"))
    sequence.made.put_nowait(letters("late"))  # made before the worker heard of the end
    sequence.push(letters("cxd"))
    assert sequence.cancelled == 1
    assert (await reading, text.finish_reason) == ("c", "stop")
    assert (pushed, text.n_tokens) == (["ab"], 4)
    assert await text.next_piece() is None


@on_loop
async def test_a_piece_that_is_held_back_is_not_pushed() -> None:
    sequence, pushed = _Sequence(), list[str]()
    text = text_of(sequence, "xy")
    text.push_to(lambda n: True, pushed.append)
    sequence.push(letters("x"))
    assert pushed == []
    sequence.push(letters("a"))
    assert pushed == ["xa"]
