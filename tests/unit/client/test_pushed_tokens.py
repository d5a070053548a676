"""Tokens that are pushed while a reader waits: which, when, and what the reader still gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from batchpool.client.aio_driver import LoopDriver
from batchpool.client.running_sequence import RunningSequence
from tests.unit.client.story_scene import StoryScene
from tests.unit.client.test_aio_driver import driving
from tests.unit.client.test_async_token_stream import begun
from tests.unit.inprocess.clock import turns


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Iterator[StoryScene]:
    scene = StoryScene(monkeypatch)
    yield scene
    scene.close()


class _Reader:
    """Reads a sequence whose tokens are pushed where `may` says so. asked: how many there were."""

    def __init__(self, sequence: RunningSequence) -> None:
        self.may = True
        self.fault: Exception | None = None
        self.asked: list[int] = []
        self.pushed: list[int] = []
        self.read: list[int] = []
        self.sequence = sequence
        sequence.push_to(self._may_push, self._push)
        self.task = asyncio.create_task(self._read())

    def _may_push(self, n: int) -> bool:
        self.asked.append(n)
        return self.may

    def _push(self, tokens: Any) -> None:
        if self.fault is not None:
            raise self.fault
        self.pushed += tokens.tolist()

    async def _read(self) -> None:
        while (new := await self.sequence.next_tokens()) is not None:
            self.read += new.tolist()


def with_reader(story: StoryScene, test: Callable[[_Reader], Coroutine[Any, Any, None]]) -> None:
    async def run(driver: LoopDriver) -> None:
        stream = await begun(driver, story)
        assert isinstance(stream._sequence, RunningSequence)
        reader = _Reader(stream._sequence)
        await turns(1)
        await test(reader)

    driving(story, run)


def test_tokens_are_pushed_while_the_reader_waits_and_the_end_is_read(story: StoryScene) -> None:
    async def test(reader: _Reader) -> None:
        story.append(5)
        await turns(2)
        story.append(6)
        story.append(7)
        await turns(2)
        assert (reader.pushed, reader.read, reader.asked) == ([5, 6, 7], [], [1, 2])
        assert reader.sequence.tokens.tolist() == [5, 6, 7]
        story.append(8)
        story.end(b"stop")
        await reader.task
        assert reader.pushed + reader.read == [5, 6, 7, 8]
        assert reader.sequence.finish_reason == "stop"

    with_reader(story, test)


def test_those_that_may_not_be_pushed_are_read_in_their_order(story: StoryScene) -> None:
    async def test(reader: _Reader) -> None:
        reader.may = False
        story.append(5)
        await turns(3)
        assert (reader.pushed, reader.read) == ([], [5])
        reader.may = True
        story.append(6)
        await turns(3)
        assert (reader.pushed, reader.read) == ([6], [5])
        reader.sequence.cancel()
        await reader.task

    with_reader(story, test)


def test_none_is_pushed_before_those_that_the_reader_was_woken_for(story: StoryScene) -> None:
    async def test(reader: _Reader) -> None:
        story.admit()
        for token, reader.may in ((5, False), (6, True)):
            story.writer.append(story.slots[0], token)
            reader.sequence._grew()
        await turns(2)
        assert (reader.pushed, reader.read) == ([], [5, 6])
        reader.sequence.cancel()
        await reader.task

    with_reader(story, test)


def test_what_push_raises_is_the_readers_alone(story: StoryScene) -> None:
    async def test(reader: _Reader) -> None:
        reader.fault = ValueError("no such token")
        story.append(5)
        with pytest.raises(ValueError, match="no such token"):
            await reader.task
        reader.sequence.cancel()
        await turns(2)
        assert not reader.sequence.runs

    with_reader(story, test)


def test_a_sequence_that_has_ended_refers_to_nobody(story: StoryScene) -> None:
    async def test(reader: _Reader) -> None:
        reader.sequence.cancel()
        assert (reader.sequence._push, reader.sequence._may_push) == (None, None)
        await reader.task

    with_reader(story, test)
