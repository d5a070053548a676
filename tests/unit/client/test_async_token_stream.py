"""AsyncClient.stream: tokens as they come, the end, errors, and what is taken back."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from batchpool.client.aio_driver import LoopDriver
from batchpool.client.async_token_stream import AsyncTokenStream
from batchpool.client.stream_call import StreamCall
from batchpool.core.errors import (
    DeadlineExceeded,
    InvalidRequest,
    ModelError,
    Overloaded,
    PoolStopped,
    Status,
)
from batchpool.core.layout.states import LaneGate
from tests.unit.client.story_scene import StoryScene
from tests.unit.client.test_aio_driver import driving
from tests.unit.inprocess.clock import turns


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Iterator[StoryScene]:
    scene = StoryScene(monkeypatch)
    yield scene
    scene.close()


Test = Callable[[LoopDriver], Coroutine[Any, Any, None]]


def opened(driver: LoopDriver, **options: Any) -> AsyncTokenStream:
    call = StreamCall({"prompt": [1, 2]}, **{"timeout_s": 2.0, **options})
    return AsyncTokenStream(driver, "m", call)


async def begun(driver: LoopDriver, story: StoryScene, **options: Any) -> AsyncTokenStream:
    """A stream whose row is published."""
    stream = opened(driver, **options)
    await stream.__aenter__()
    await turns(1)
    return stream


def test_tokens_come_as_they_are_made(story: StoryScene) -> None:
    async def test(driver: LoopDriver) -> None:
        stream = opened(driver)
        assert (stream.tokens.tolist(), stream.finish_reason) == ([], None)
        got: list[int] = []

        async def read() -> None:
            async for token in stream:
                got.append(token)

        reading = asyncio.create_task(read())
        await turns(2)
        story.append(5)
        await turns(3)
        assert got == [5]
        story.append(6)
        story.append(7)
        await turns(3)
        assert got == [5, 6, 7]
        assert stream.finish_reason is None
        story.append(8)
        story.end(b"stop")
        await reading
        assert (got, stream.finish_reason) == ([5, 6, 7, 8], "stop")
        assert stream.tokens.tolist() == got
        assert story.lane_client.allocator.claimed == 0
        assert await stream.next_tokens() is None

    driving(story, test)


def test_all_that_is_new_comes_as_one_array(story: StoryScene) -> None:
    async def test(driver: LoopDriver) -> None:
        stream = await begun(driver, story)
        story.append(5)
        story.append(6, 7)
        assert await anext(stream) == 5
        rest = await stream.next_tokens()
        assert rest is not None
        assert rest.tolist() == [6, 7]
        await stream.close()

    driving(story, test)


def test_the_slot_of_a_row_that_is_done_waits_for_no_reader(story: StoryScene) -> None:
    async def test(driver: LoopDriver) -> None:
        stream = await begun(driver, story)
        story.append(5, 6)
        story.end(b"length")
        await turns(2)
        assert story.lane_client.allocator.claimed == 0
        assert [token async for token in stream] == [5, 6]
        assert stream.finish_reason == "length"

    driving(story, test)


def test_streams_of_one_lane_get_their_own_tokens(story: StoryScene) -> None:
    async def test(driver: LoopDriver) -> None:
        first, second = await begun(driver, story), await begun(driver, story)
        waiting = asyncio.create_task(first.next_tokens())
        await turns(1)
        story.append(1, row=1)
        await turns(2)
        assert not waiting.done()
        story.append(9, row=0)
        got = await waiting
        assert got is not None
        assert got.tolist() == [9]
        assert await anext(second) == 1
        first.cancel()
        second.cancel()
        assert story.cancelled == [0, 1]

    driving(story, test)


def test_an_error_comes_after_the_tokens_before_it(story: StoryScene) -> None:
    async def test(driver: LoopDriver) -> None:
        stream = await begun(driver, story)
        story.append(5)
        story.end(status=Status.MODEL_ERROR, text="it raised")
        assert await anext(stream) == 5
        with pytest.raises(ModelError, match="it raised"):
            await anext(stream)
        assert await stream.next_tokens() is None
        assert (stream.tokens.tolist(), stream.finish_reason) == ([5], None)
        assert story.lane_client.allocator.claimed == 0

    driving(story, test)


def test_a_deadline_takes_the_row_back(story: StoryScene) -> None:
    async def test(driver: LoopDriver) -> None:
        stream = await begun(driver, story)
        story.append(5)
        with pytest.raises(DeadlineExceeded, match="it had made 1 tokens"):
            async for token in stream:
                assert token == 5
        assert story.cancelled == [0]

    driving(story, test)


@pytest.mark.parametrize("way", ["cancel", "close", "drop", "break", "with", "task"])
def test_leaving_takes_the_row_back(story: StoryScene, way: str) -> None:
    async def test(driver: LoopDriver) -> None:
        async def read(stream: AsyncTokenStream) -> None:
            if way == "with":
                async with stream:
                    assert await anext(stream) == 5
                return
            async for token in stream:
                assert token == 5
                if way == "break":
                    break

        stream: AsyncTokenStream | None = opened(driver)
        reading = asyncio.create_task(read(stream))  # type: ignore[arg-type]
        if way in ("break", "with"):
            stream = None
        await turns(2)
        story.append(5)
        await turns(3)
        if way == "close":
            assert stream is not None
            await stream.close()
        elif way == "cancel":
            assert stream is not None
            stream.cancel()
        elif way in ("drop", "task"):
            stream = None
            reading.cancel()
        await asyncio.wait([reading])
        del reading
        gc.collect()
        await turns(2)
        assert story.cancelled == [0]
        assert story.lane_client.allocator.claimed == 1, "until the worker has left it"
        story.end(status=Status.CANCELLED)
        await turns(2)
        assert story.lane_client.allocator.claimed == 0

    driving(story, test)


def test_a_stream_that_is_taken_back_before_it_begins_does_not(story: StoryScene) -> None:
    async def test(driver: LoopDriver) -> None:
        stream = opened(driver)
        stream.cancel()
        assert [token async for token in stream] == []
        assert story.rings == 0

    driving(story, test)


def test_a_stream_that_is_taken_back_while_it_waits_for_room(story: StoryScene) -> None:
    async def test(driver: LoopDriver) -> None:
        others = [await begun(driver, story) for _ in range(9)]
        stream = opened(driver)
        waiting = asyncio.create_task(stream.next_tokens())
        await turns(2)
        stream.cancel()
        story.append(1)
        story.end()
        assert await waiting is None
        await turns(2)
        assert story.cancelled == [9], "the row that it got then"
        for other in others:
            other.cancel()

    driving(story, test)


def test_a_full_lane_refuses_where_the_call_does_not_wait(story: StoryScene) -> None:
    async def test(driver: LoopDriver) -> None:
        others = [await begun(driver, story) for _ in range(9)]
        with pytest.raises(Overloaded):
            await opened(driver, wait_for_room=False).next_tokens()
        for other in others:
            other.cancel()

    driving(story, test)


def test_wrong_arguments_are_told_at_the_first_use(story: StoryScene) -> None:
    async def test(driver: LoopDriver) -> None:
        with pytest.raises(InvalidRequest, match="max_token"):
            await opened(driver, parameters={"max_token": 3}).next_tokens()

    driving(story, test)


def test_two_waits_at_once_are_refused(story: StoryScene) -> None:
    async def test(driver: LoopDriver) -> None:
        stream = await begun(driver, story)
        waiting = asyncio.create_task(stream.next_tokens())
        await turns(1)
        with pytest.raises(RuntimeError, match="another call of it waits"):
            await stream.next_tokens()
        stream.cancel()
        assert await waiting is None

    driving(story, test)


def test_a_client_that_is_closed_ends_it(story: StoryScene) -> None:
    async def test(driver: LoopDriver) -> None:
        stream = await begun(driver, story)
        story.append(5)
        await driver.close()
        assert await anext(stream) == 5
        with pytest.raises(PoolStopped):
            await anext(stream)

    driving(story, test)


def test_a_stream_stays_on_its_lane_when_the_model_moves(story: StoryScene) -> None:
    async def test(driver: LoopDriver) -> None:
        stream = await begun(driver, story)
        story.append(5)
        story.pool.lane.close_gate(LaneGate.MOVED)
        await turns(3)
        assert story.lane_client in story.session.lane_set.driven
        story.append(6)
        story.end(b"stop")
        assert [token async for token in stream] == [5, 6]
        assert stream.finish_reason == "stop"
        assert story.lane_client not in story.session.lane_set.driven, "it was left after the end"

    driving(story, test)
