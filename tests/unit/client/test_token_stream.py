"""Client.stream: tokens one by one and together, the end, errors, and what is taken back."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from batchpool.client.token_stream import TokenStream
from batchpool.core.errors import (
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    PoolStopped,
    Status,
    WorkerLost,
)
from batchpool.core.layout.states import LaneGate
from tests.unit.client.scene import Scene
from tests.unit.client.story_scene import StoryScene


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Iterator[StoryScene]:
    scene = StoryScene(monkeypatch)
    yield scene
    scene.close()


@pytest.fixture
def pool(story: StoryScene) -> Iterator[bp.Client]:
    with bp.Client("here") as pool:
        yield pool


def opened(pool: bp.Client, *prompt: int, **options: Any) -> TokenStream:
    return pool.stream("m", prompt=prompt or (1, 2), **{"timeout_s": 2.0, **options})


def test_tokens_come_one_by_one_as_they_are_made(pool: bp.Client, story: StoryScene) -> None:
    stream = opened(pool)
    assert stream.finish_reason is None
    story.waits.steps += [
        lambda: story.append(5),
        lambda: story.append(6, 7),
        lambda: story.end(b"stop"),
    ]
    tokens = list(stream)
    assert tokens == [5, 6, 7]
    assert {type(token) for token in tokens} == {int}
    assert stream.finish_reason == "stop"
    assert (stream.tokens.tolist(), stream.tokens.dtype) == ([5, 6, 7], np.int32)
    assert story.lane_client.allocator.claimed == 0
    assert list(stream) == []


def test_all_that_is_new_comes_as_one_array(pool: bp.Client, story: StoryScene) -> None:
    stream = opened(pool)
    story.append(5, 6, 7)
    assert next(stream) == 5
    rest = stream.next_tokens()
    assert rest is not None
    assert rest.tolist() == [6, 7]
    story.append(8)
    story.end(b"length")
    last = stream.next_tokens()
    assert last is not None
    assert last.tolist() == [8]
    assert stream.next_tokens() is None
    assert stream.next_tokens() is None
    assert stream.finish_reason == "length"


def test_prompt_parameters_and_times_reach_the_slot(pool: bp.Client, story: StoryScene) -> None:
    opened(pool, 3, 4, 5, parameters={"max_tokens": 6}, priority=9)
    story.admit()
    lane = story.pool.lane.lane
    assert lane.inputs["prompt"].values[0, :3].tolist() == [3, 4, 5]
    assert lane.input_sizes[0, 0] == 3
    assert (lane.parameters["max_tokens"].values[0], lane.priority[0]) == (6, 9)


@pytest.mark.parametrize("prompt", [np.array([[1, 2]], np.int32), np.array([1, 2], np.int32),
                                    [[1, 2]]])  # fmt: skip
def test_a_prompt_may_have_a_dimension_for_rows(
    pool: bp.Client, story: StoryScene, prompt: Any
) -> None:
    pool.stream("m", {"prompt": prompt})
    story.admit()
    assert story.pool.lane.lane.inputs["prompt"].values[0, :2].tolist() == [1, 2]


def test_two_prompts_are_refused(pool: bp.Client, story: StoryScene) -> None:
    with pytest.raises(InvalidRequest, match="2 prompts came; a stream has one"):
        pool.stream("m", prompt=[[1, 2], [3, 4]])
    assert story.lane_client.allocator.claimed == 0


def test_a_model_without_tokens_is_refused(scene: Scene) -> None:
    with bp.Client("here") as pool, pytest.raises(InvalidRequest, match="'m' is no generator"):
        pool.stream("m", x=np.zeros(4, np.float32))


def test_an_error_comes_after_the_tokens_before_it(pool: bp.Client, story: StoryScene) -> None:
    stream = opened(pool)
    story.append(5, 6)
    story.end(status=Status.WORKER_LOST, text="it died thrice")
    assert [next(stream), next(stream)] == [5, 6]
    with pytest.raises(WorkerLost, match="it died thrice"):
        next(stream)
    assert list(stream) == []
    assert (stream.tokens.tolist(), stream.finish_reason) == ([5, 6], None)
    assert story.lane_client.allocator.claimed == 0


def test_a_deadline_takes_the_row_back(pool: bp.Client, story: StoryScene) -> None:
    stream = opened(pool, timeout_s=2.0)
    story.append(5)
    assert next(stream) == 5
    with pytest.raises(DeadlineExceeded, match="it had made 1 tokens"):
        next(stream)
    assert story.cancelled == [0]
    story.append(6)
    assert stream.tokens.tolist() == [5]
    assert story.lane_client.allocator.claimed == 1, "until the worker has left it"
    story.end(status=Status.CANCELLED)
    story.lane_client.reap(story.clock())
    assert story.lane_client.allocator.claimed == 0


@pytest.mark.parametrize("way", ["close", "cancel", "drop", "break", "with"])
def test_leaving_takes_the_row_back_at_once(pool: bp.Client, story: StoryScene, way: str) -> None:
    stream: TokenStream | None = None
    rings = story.rings + 1
    if way == "break":
        story.waits.steps.append(lambda: story.append(5))
        for token in opened(pool):
            assert token == 5
            break
    else:
        stream = opened(pool)
        story.append(5)
    if stream is None:
        pass
    elif way == "with":
        with stream:
            assert next(stream) == 5
    elif way == "drop":
        stream = None
        gc.collect()
    else:
        getattr(stream, way)()
    assert story.cancelled == [0]
    assert story.rings == rings + 1
    if way in ("close", "cancel"):
        assert stream is not None
        story.append(6)
        assert list(stream) == [5], "what was made until then"
        assert stream.finish_reason is None


def test_a_finished_row_that_is_dropped_is_free(pool: bp.Client, story: StoryScene) -> None:
    stream = opened(pool)
    story.append(5)
    story.end()
    story.lane_client.reap(story.clock())
    stream.close()
    assert story.lane_client.allocator.claimed == 0
    assert story.cancelled == []
    assert stream.tokens.tolist() == [5]


def test_a_full_lane_makes_the_call_wait_or_fail(pool: bp.Client, story: StoryScene) -> None:
    streams = [opened(pool) for _ in range(9)]
    story.append(1)
    streams.pop(0).cancel()
    story.waits.steps.append(lambda: story.end(status=Status.CANCELLED))
    streams.append(opened(pool))
    with pytest.raises(DeadlineExceeded, match="no room"):
        opened(pool)
    with pytest.raises(Overloaded):
        opened(pool, wait_for_room=False)


def test_a_pool_that_goes_away_ends_it(pool: bp.Client, story: StoryScene) -> None:
    stream = opened(pool)
    story.append(5)
    assert next(stream) == 5
    story.waits.steps.append(story.stop)
    with pytest.raises(PoolStopped, match="the sequence had 1 tokens"):
        next(stream)
    assert stream.tokens.tolist() == [5]
    stream.close()


def test_a_stream_stays_on_its_lane_when_the_model_moves(
    pool: bp.Client, story: StoryScene
) -> None:
    stream = opened(pool)
    story.append(5)
    story.pool.lane.lane.gate.set(int(LaneGate.MOVED))
    story.pool.lane.lane.generation.set(1)
    story.waits.steps += [lambda: story.append(6), lambda: story.end(b"stop")]
    assert list(stream) == [5, 6]
    assert stream.finish_reason == "stop"
    assert story.lane_client not in story.session.lane_set.driven, "it was left after the end"
