"""Generate with a prompt as text: answers and events of text, stop strings, refusals, callers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.lazy import library
from tests.unit.frontend.asgi.test_generate import events_of
from tests.unit.frontend.frontend_double import Edge, calling, edge, request, serving
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.story_double import Story
from tests.unit.frontend.text_story import tale

library("tokenizers")

WHOLE, EVENTS = "/v2/models/tale/generate", "/v2/models/tale/generate_stream"


def body(text: str = "a", max_tokens: int = 3, **more: Any) -> dict[str, Any]:
    return {"text_input": text, "parameters": {"max_tokens": max_tokens}, **more}


def slots_free(it: Edge) -> bool:
    return it.pool.lane_client("tale").allocator.claimed == 0


@on_loop
async def test_whole_answer(tmp_path: Path) -> None:
    async with edge(tale(tmp_path)) as it:
        answer = await it.http.post(WHOLE, json=body(id="one"))
        assert answer.status_code == 200
        assert answer.json() == {
            "model_name": "tale",
            "model_version": "1",
            "id": "one",
            "text_output": "bcd",
            "finish_reason": "length",
        }
        assert slots_free(it)


@on_loop
async def test_events_have_all_text_and_the_last_has_the_reason(tmp_path: Path) -> None:
    async with edge(tale(tmp_path)) as it:
        answer = await it.http.post(EVENTS, json=body(max_tokens=9))
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = events_of(answer.text)
        assert "".join(event["text_output"] for event in events) == "bcdefghij"
        reasons = [event.get("finish_reason") for event in events]
        assert reasons == [*[None] * (len(events) - 1), "length"]
        assert slots_free(it)


@on_loop
async def test_a_stop_string_ends_it_and_takes_the_sequence_back(tmp_path: Path) -> None:
    async with edge(tale(tmp_path)) as it:
        asked = body(max_tokens=64, stop=["ef", "x"])
        whole = (await it.http.post(WHOLE, json=asked)).json()
        assert (whole["text_output"], whole["finish_reason"]) == ("bcd", "stop")
        events = events_of((await it.http.post(EVENTS, json=asked)).text)
        assert "".join(event["text_output"] for event in events) == "bcd"
        assert events[-1]["finish_reason"] == "stop"
        await until(lambda: slots_free(it), "the slots are free")


@on_loop
async def test_tokens_are_still_taken_and_answered_by_tokens(tmp_path: Path) -> None:
    async with edge(tale(tmp_path)) as it:
        asked = {"prompt": [10], "parameters": {"max_tokens": 2}}
        assert (await it.http.post(WHOLE, json=asked)).json()["token"] == [11, 12]
        assert events_of((await it.http.post(EVENTS, json=asked)).text)[0]["token"]


@pytest.mark.parametrize(
    ("path", "members", "text"),
    [
        (WHOLE, {"stream": True}, "POST it to /v2/models/tale/generate_stream"),
        (EVENTS, {"stream": False}, "POST it to /v2/models/tale/generate"),
        (WHOLE, {"text_input": ""}, "the prompt is empty"),
        (EVENTS, {"text_input": "a" * 5000}, "at most 64"),
        (EVENTS, {"id": "x" * 257}, "at most 256 are taken"),
        (WHOLE, {"prompt": [1]}, "unknown member 'prompt'"),
    ],
)
@on_loop
async def test_what_is_wrong_is_400(
    tmp_path: Path, path: str, members: dict[str, Any], text: str
) -> None:
    async with edge(tale(tmp_path)) as it:
        answer = await it.http.post(path, json=body(**members))
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
        assert text in answer.json()["error"]
        assert slots_free(it)


@on_loop
async def test_a_generator_without_a_text_says_what_it_takes() -> None:
    async with edge(Story) as it:
        answer = await it.http.post("/v2/models/story/generate", json=body())
        assert answer.status_code == 400
        assert "has no text (bp.Text)" in answer.json()["error"]
        assert "send tokens as 'prompt'" in answer.json()["error"]


@on_loop
async def test_a_compressed_body_and_a_deadline_of_the_head(tmp_path: Path) -> None:
    async with edge(tale(tmp_path)) as it:
        packed = gzip.compress(json.dumps(body()).encode())
        answer = await it.http.post(WHOLE, content=packed, headers={"content-encoding": "gzip"})
        assert answer.json()["text_output"] == "bcd"
        it.pool.hold = True
        late = await it.http.post(WHOLE, json=body(), headers={"x-request-timeout-ms": "1"})
        assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")


@pytest.mark.parametrize("path", [WHOLE, EVENTS])
@on_loop
async def test_a_caller_that_goes_gives_its_place_back(tmp_path: Path, path: str) -> None:
    async with edge(tale(tmp_path)) as it, serving(it) as site:
        it.pool.hold = True
        rows = it.pool.stories["tale"]
        async with calling(site) as caller:
            await caller.send(request(path, json.dumps(body(max_tokens=60)).encode()))
            await until(lambda: bool(rows.running), "it runs")
            rows.step()
            caller.writer.close()
            await until(lambda: not rows.running, "its row is cancelled")
            await until(lambda: slots_free(it), "its slot is free")
