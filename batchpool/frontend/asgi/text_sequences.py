"""The sequences of one request for texts: a prompt each, run side by side, and read as text.

A prompt that finds the lane full waits for those before it; the first one is refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from batchpool.client.sequence_tokens import SequenceTokens
from batchpool.core.errors import Overloaded
from batchpool.core.tensors.dtypes import Array
from batchpool.frontend.asgi.sequence_text import SequenceText
from batchpool.text.generated_text import GeneratedText

Start = Callable[[Array], SequenceTokens]
Parts = AsyncGenerator[list["TextPart"], None]


class TextPart(NamedTuple):
    """More of a text, perhaps "". number: of its prompt, from 0. is_first: nothing of it came
    before. finish_reason: "stop" or "length" with its last part, else ""."""

    number: int
    text: str
    is_first: bool
    finish_reason: str


_NextPart = asyncio.Task[TextPart | None]


class Running(NamedTuple):
    """A sequence that has begun. number: of its prompt."""

    number: int
    text: SequenceText


class TextSequences:
    """prompts: the tokens of each. start: submits one; raises why it is refused. generated: makes
    the text of one sequence from its tokens. all_begun: called once no prompt waits any more.
    count: how many prompts there are. given_up: they were taken back.
    """

    def __init__(
        self,
        prompts: Sequence[Array],
        start: Start,
        generated: Callable[[], GeneratedText],
        all_begun: Callable[[], None],
    ) -> None:
        self._waiting = deque(enumerate(prompts))
        self._start = start
        self._generated = generated
        self._all_begun = all_begun
        self._begun: list[Running] = []
        self._under_way = 0
        self.count = len(prompts)
        self.given_up = False

    @property
    def completion_tokens(self) -> int:
        """The number of tokens that were made for all texts."""
        return sum(each.text.n_tokens for each in self._begun)

    def begin(self) -> list[Running]:
        """Begin as many as there is room for, and return them. Raises why the first is refused, and
        why another one is, unless those before it will make room."""
        begun = []
        while self._waiting and not self.given_up:
            number, prompt = self._waiting[0]
            try:
                tokens = self._start(prompt)
            except Overloaded:
                if not self._under_way:
                    raise
                break
            self._waiting.popleft()
            begun.append(Running(number, SequenceText(tokens, self._generated())))
            self._begun.append(begun[-1])
            self._under_way += 1
            if not self._waiting:
                self._all_begun()
        return begun

    def cancel(self) -> None:
        """Take all sequences back; `parts` comes to its end."""
        self.given_up = True
        for each in self._begun:
            each.text.tokens.cancel()

    async def parts(self, begun: list[Running]) -> Parts:
        """The parts of all texts as they come, those of one moment together. Raises the error of
        the first sequence that has one. begun: what `begin` returned."""
        if self.count == 1:
            async with aclosing(self._parts_of(begun[0])) as parts:
                async for only in parts:
                    yield [only]
            return
        readers: dict[_NextPart, AsyncGenerator[TextPart, None]] = {}
        try:
            while True:
                for running in begun:
                    parts = self._parts_of(running)
                    readers[_next_part(parts)] = parts
                if not readers:
                    return
                done, _ = await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)
                found = []
                for task in done:
                    parts, part = readers.pop(task), task.result()
                    if part is not None:
                        found.append(part)
                        readers[_next_part(parts)] = parts
                if found:
                    yield sorted(found)
                begun = self.begin()
        finally:
            for task in readers:
                task.cancel()

    async def _parts_of(self, running: Running) -> AsyncGenerator[TextPart, None]:
        """The parts of one text."""
        number, text = running
        is_first = True
        try:
            while (piece := await text.next_piece()) is not None:
                yield TextPart(number, piece, is_first, text.finish_reason or "")
                is_first = False
        finally:
            self._under_way -= 1


def _next_part(parts: AsyncGenerator[TextPart, None]) -> _NextPart:
    """A task that waits for the next part, None at the end."""
    task = asyncio.create_task(_next(parts))
    task.add_done_callback(_retrieve)
    return task


async def _next(parts: AsyncGenerator[TextPart, None]) -> TextPart | None:
    return await anext(parts, None)


def _retrieve(task: _NextPart) -> None:
    """Take note of an error that nobody waits for: another sequence had one before."""
    if not task.cancelled():
        task.exception()
