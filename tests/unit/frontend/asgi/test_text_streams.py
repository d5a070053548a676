"""Streams of texts over a port: parts as they come, errors within, callers that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from batchpool.core.errors import Status
from batchpool.frontend.asgi import event_stream
from tests.lazy import library
from tests.unit.frontend.frontend_double import Edge, calling, edge, request, serving
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.story_double import StoryDouble
from tests.unit.frontend.text_story import tale

openai = library("openai")
library("tokenizers")


@asynccontextmanager
async def telling(tmp_path: Path, **facts: Any) -> AsyncIterator[tuple[Edge, StoryDouble, Any]]:
    """A front end on a port, whose story goes on when the test steps it, and a client."""
    async with edge(tale(tmp_path), **facts) as it, serving(it) as site:
        it.pool.hold = True
        url = f"http://127.0.0.1:{site.address[1]}/v1"
        async with (
            httpx.AsyncClient() as http,
            openai.AsyncOpenAI(
                base_url=url, api_key="a", max_retries=0, http_client=http
            ) as caller,
        ):
            yield it, it.pool.stories["tale"], caller


async def opened(story: StoryDouble, opening: Any) -> Any:
    """The stream, whose head comes with its first token. opening: a task that opens it."""
    await until(lambda: bool(story.running), "a sequence runs")
    assert not opening.done()
    story.step()
    return await opening


def counted(it: Edge) -> dict[str, int]:
    totals = it.counters.totals()
    return totals.values("http_requests_total", "reason", model="tale", road="asgi")


@on_loop
async def test_each_part_comes_when_its_token_is_made(tmp_path: Path) -> None:
    async with telling(tmp_path) as (_, story, caller):
        call = caller.completions.create(model="tale", prompt="a", max_tokens=3, stream=True)
        stream = await opened(story, asyncio.create_task(call))
        parts = aiter(stream)
        for letter in "bc":
            assert (await anext(parts)).choices[0].text == letter
            story.step()
        assert (await anext(parts)).choices[0].text == "d"
        assert (await anext(parts)).choices[0].finish_reason == "length"
        with pytest.raises(StopAsyncIteration):
            await anext(parts)


@on_loop
async def test_an_error_within_a_stream_is_the_clients_exception(tmp_path: Path) -> None:
    async with telling(tmp_path) as (_, story, caller):
        call = caller.chat.completions.create(
            model="tale", messages=[{"role": "user", "content": "a"}], stream=True
        )
        stream = await opened(story, asyncio.create_task(call))
        parts = aiter(stream)
        await anext(parts)
        assert (await anext(parts)).choices[0].delta.content == "b"
        story.end(*story.running, Status.WORKER_LOST, "the worker died")
        with pytest.raises(openai.APIError) as caught:
            await anext(parts)
        assert (caught.value.code, caught.value.type) == ("worker_lost", "server_error")
        assert "the worker died" in caught.value.message


@pytest.mark.parametrize("prompt", ["a", ["a", "b", "c"]])
@on_loop
async def test_a_caller_that_leaves_takes_its_sequences_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prompt: Any
) -> None:
    monkeypatch.setattr(event_stream, "BEAT_S", 3600.0)  # comments do not find out
    async with telling(tmp_path, request_timeout_s=3600.0) as (it, story, caller):
        call = caller.completions.create(model="tale", prompt=prompt, max_tokens=30, stream=True)
        stream = await opened(story, asyncio.create_task(call))
        await anext(aiter(stream))
        await stream.close()
        claimed = it.pool.lane_client("tale").allocator
        await until(lambda: not story.running and not claimed.claimed, "all are taken back")
        await until(lambda: counted(it) == {"cancelled": 1}, "the request is counted")


@pytest.mark.parametrize("stream", [False, True])
@on_loop
async def test_a_caller_that_leaves_before_the_first_token(tmp_path: Path, stream: bool) -> None:
    async with edge(tale(tmp_path)) as it, serving(it) as site:
        it.pool.hold = True
        story = it.pool.stories["tale"]
        content = json.dumps({"model": "tale", "prompt": "a", "stream": stream}).encode()
        async with calling(site) as caller:
            await caller.send(request("/v1/completions", content))
            await until(lambda: bool(story.running), "a sequence runs")
        await until(lambda: not story.running, "it is taken back")
        await until(lambda: it.view.memory.held_bytes == 0, "no byte is held")


@on_loop
async def test_the_bytes_that_curl_gets(tmp_path: Path) -> None:
    async with edge(tale(tmp_path)) as it, serving(it) as site, calling(site) as caller:
        content = json.dumps({"model": "tale", "prompt": "a", "max_tokens": 2, "stream": True})
        await caller.send(
            request("/v1/completions", content.encode(), headers={"Connection": "close"})
        )
        answer = (await caller.ended()).decode()
        head, _, rest = answer.partition("\r\n\r\n")
        assert head.startswith("HTTP/1.1 200")
        assert "content-type: text/event-stream" in head.lower()
        assert "transfer-encoding: chunked" in head.lower()
        assert "x-accel-buffering: no" in head.lower()
        assert rest.endswith("data: [DONE]\n\n\r\n0\r\n\r\n")
        texts = [
            json.loads(line[6:])["choices"][0]
            for line in rest.splitlines()
            if line[:7] == "data: {"
        ]
        assert "".join(text["text"] for text in texts) == "bc"
