"""Generate over the application: whole answers, events as tokens come, errors, callers that go."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import batchpool as bp
from batchpool.core.errors import Status
from batchpool.core.layout.states import SlotState
from batchpool.frontend.asgi import event_stream
from batchpool.frontend.http.connection import Connection
from batchpool.frontend.http.connection_limits import ConnectionLimits
from batchpool.frontend.service.http_endpoint import HttpEndpoint
from tests.unit.frontend.frontend_double import Caller, Edge, calling, edge, request, serving
from tests.unit.frontend.http.test_waits import deaf_socket
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine
from tests.unit.frontend.story_double import Story

WHOLE, EVENTS = "/v2/models/story/generate", "/v2/models/story/generate_stream"


def body(first: int = 10, max_tokens: int = 3, **more: Any) -> dict[str, Any]:
    return {"prompt": [first, 0], "parameters": {"max_tokens": max_tokens}, **more}


def events_of(text: str) -> list[Any]:
    found = text.split("\n\n")
    assert found.pop() == ""
    return [json.loads(event.removeprefix("data: ")) for event in found]


def counted(it: Edge) -> dict[str, int]:
    """The number of requests for the model, by the reasons of their ends."""
    totals = it.counters.totals()
    return totals.values("http_requests_total", "reason", model="story", road="asgi")


def assert_all_free(it: Edge) -> None:
    lane_client = it.pool.lane_client("story")
    assert lane_client.allocator.claimed == 0
    assert (lane_client.lane.state == SlotState.FREE).all()


@asynccontextmanager
async def streaming(it: Edge, *, limits: ConnectionLimits | None = None,
                    **options: Any) -> AsyncIterator[Caller]:  # fmt: skip
    """A connection on which a stream was asked for."""
    async with serving(it, limits) as site, calling(site) as caller:
        await caller.send(request(EVENTS, json.dumps(body(**options)).encode()))
        yield caller


@pytest.mark.parametrize("path", [WHOLE, "/v2/models/story/versions/1/generate"])
@on_loop
async def test_whole_answer(path: str) -> None:
    async with edge(Story) as it:
        answer = await it.http.post(path, json=body())
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.json() == {
            "model_name": "story",
            "model_version": "1",
            "token": [11, 12, 13],
            "finish_reason": "length",
        }
        assert_all_free(it)


@on_loop
async def test_the_id_of_plain_json_comes_back() -> None:
    async with edge(Story) as it:
        asked = body() | {"id": "42"}
        whole = (await it.http.post(WHOLE, json=asked)).json()
        assert (whole["id"], whole["token"]) == ("42", [11, 12, 13])
        events = events_of((await it.http.post(EVENTS, json=asked)).text)
        assert {event["id"] for event in events} == {"42"}


@pytest.mark.parametrize("path", [WHOLE, EVENTS, "/v2/models/story/infer"])
@pytest.mark.parametrize("prompt", [[], [[]]])
@on_loop
async def test_an_empty_prompt_is_refused_before_it_takes_a_slot(path: str, prompt: Any) -> None:
    async with edge(Story) as it:
        answer = await it.http.post(path, json=body() | {"prompt": prompt})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
        text = "input 'prompt' is empty; at least 1 of [n, 1..16] was expected"
        assert answer.json()["error"] == text
        lane = it.pool.lane_client("story").lane
        assert not lane.sequence.any(), "no slot was used"


@pytest.mark.parametrize("path", [WHOLE, EVENTS])
@on_loop
async def test_a_body_longer_than_any_prompt_is_refused_unread(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """By its head where that tells the length, else by what has come."""
    parsed: list[Any] = []
    monkeypatch.setattr(HttpEndpoint, "parse", lambda *some: parsed.append(some))
    monkeypatch.setattr(HttpEndpoint, "parse_long", lambda *some: parsed.append(some))
    async with edge(Story) as it:
        most = (256 << 10) + 64 * 16
        content = json.dumps(body() | {"prompt": [1] * 100_000}).encode()

        async def pieces() -> AsyncIterator[bytes]:
            for at in range(0, len(content), 1 << 16):
                yield content[at : at + (1 << 16)]

        for sent, text in ((content, "the body has 3"), (pieces(), "the body is larger than")):
            answer = await it.http.post(path, content=sent)
            assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
            assert answer.json()["error"].startswith(text)
            assert f"{most}" in answer.json()["error"]
            assert "shorten the prompt" in answer.json()["error"]
        assert parsed == []
        await it.http.post(path, content=b"{" + b" " * (most - 2) + b"}")
        assert len(parsed) == 1


@on_loop
async def test_events_have_all_tokens_and_the_last_has_the_reason() -> None:
    async with edge(Story) as it:
        answer = await it.http.post(EVENTS, json=body(first=95, max_tokens=50))
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        events = events_of(answer.text)
        assert [token for event in events for token in event["token"]] == [96, 97, 98, 99, 100]
        assert [event.get("finish_reason") for event in events] == [
            *[None] * (len(events) - 1), "stop",
        ]  # fmt: skip
        assert {event["model_name"] for event in events} == {"story"}
        assert_all_free(it)


@on_loop
async def test_protocol_form_with_id() -> None:
    async with edge(Story) as it:
        tensor = {"name": "prompt", "datatype": "INT32", "shape": [1, 2], "data": [10, 0]}
        asked = {"id": "one", "inputs": [tensor], "parameters": {"max_tokens": 2}}
        whole = (await it.http.post(WHOLE, json=asked)).json()
        assert (whole["id"], whole["token"]) == ("one", [11, 12])
        events = events_of((await it.http.post(EVENTS, json=asked)).text)
        assert {event["id"] for event in events} == {"one"}


@on_loop
async def test_an_id_that_every_event_would_bear_has_a_limit() -> None:
    async with edge(Story) as it:
        tensor = {"name": "prompt", "datatype": "INT32", "shape": [1, 2], "data": [10, 0]}
        answer = await it.http.post(EVENTS, json={"id": "x" * 257, "inputs": [tensor]})
        assert answer.status_code == 400
        assert "at most 256 are taken" in answer.json()["error"]
        assert_all_free(it)


@on_loop
async def test_infer_of_a_generator_is_as_of_every_model() -> None:
    async with edge(Story) as it:
        path = "/v2/models/story/infer"
        plain = (await it.http.post(path, json=body())).json()
        assert plain == {"token": [11, 12, 13], "finish_reason": "length"}
        many = {"prompt": [[10], [98, 7]], "parameters": {"max_tokens": 3}}
        found = (await it.http.post(path, json=many)).json()
        assert found == {
            "token": [[11, 12, 13], [99, 100]],
            "finish_reason": ["length", "stop"],
        }
        assert_all_free(it)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"prompt": [[1], [2]]}, "2 prompts came; a stream has one"),
        ({"prompts": [1]}, "no input 'prompts'"),
        ({"prompt": [1], "parameters": {"most": 3}}, "most"),
        ({"prompt": [1], "max_tokens": 3}, 'beside the inputs: "parameters": {"max_tokens": ...}'),
    ],
)
@pytest.mark.parametrize("path", [WHOLE, EVENTS])
@on_loop
async def test_what_is_wrong_with_a_request_is_400(
    path: str, asked: dict[str, Any], text: str
) -> None:
    async with edge(Story) as it:
        answer = await it.http.post(path, json=asked)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
        assert text in answer.json()["error"]
        assert_all_free(it)


@pytest.mark.parametrize("tail", ["generate", "generate_stream"])
@on_loop
async def test_a_model_that_is_no_generator_is_400(tail: str) -> None:
    async with edge(Affine) as it:
        answer = await it.http.post(f"/v2/models/affine/{tail}", json={"x": [1, 2, 3, 4]})
        assert answer.status_code == 400
        assert "'affine' is no generator" in answer.json()["error"]
        missing = await it.http.post(f"/v2/models/none/{tail}", json={"x": [1]})
        assert missing.status_code == 404


@on_loop
async def test_an_error_before_the_first_token_has_its_status() -> None:
    async with edge(Story) as it:
        it.pool.hold = True
        asking = asyncio.create_task(it.http.post(EVENTS, json=body()))
        story = it.pool.stories["story"]
        await until(lambda: bool(story.running), "it runs")
        story.end(0, Status.INVALID_INPUT, "no such prompt")
        answer = await asking
        assert (answer.status_code, answer.json()["error"]) == (400, "no such prompt")
        assert_all_free(it)


@on_loop
async def test_an_error_within_the_stream_is_its_last_event() -> None:
    async with edge(Story) as it:
        answer = await it.http.post(EVENTS, json=body(first=-50))
        assert answer.status_code == 200
        *events, last = events_of(answer.text)
        assert [token for event in events for token in event["token"]] == [-49, -48]
        assert last == {"error": "the story broke off", "code": "model_error"}
        assert counted(it) == {"model_error": 1}
        assert_all_free(it)


@on_loop
async def test_tokens_go_out_as_they_are_made() -> None:
    async with edge(Story) as it:
        it.pool.hold = True
        async with streaming(it) as caller:
            story = it.pool.stories["story"]
            await until(lambda: bool(story.running), "it runs")
            story.step()
            head = await caller.reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"content-length" not in head
            await caller.reader.readuntil(b'"token":[11]}\n\n')
            story.step()
            await caller.reader.readuntil(b'"token":[12]}\n\n')
            story.step()
            await caller.reader.readuntil(b'"token":[13],"finish_reason":"length"}\n\n')
            await caller.reader.readuntil(b"0\r\n\r\n")
        assert counted(it) == {"ok": 1}
        assert_all_free(it)


@on_loop
async def test_the_reason_may_come_after_the_last_tokens() -> None:
    async with edge(Story) as it:
        it.pool.hold = True
        async with streaming(it) as caller:
            story = it.pool.stories["story"]
            await until(lambda: bool(story.running), "it runs")
            story.step()
            await caller.reader.readuntil(b'"token":[11]}\n\n')
            story.end(0)
            await caller.reader.readuntil(b'"token":[],"finish_reason":"stop"}\n\n')
        assert_all_free(it)


@pytest.mark.parametrize("made", [0, 2])
@on_loop
async def test_a_caller_that_goes_gives_its_place_back(
    monkeypatch: pytest.MonkeyPatch, made: int
) -> None:
    monkeypatch.setattr(event_stream, "BEAT_S", 3600.0)  # comments do not find out
    async with edge(Story, request_timeout_s=3600.0) as it:  # nor does the deadline
        it.pool.hold = True
        story = it.pool.stories["story"]
        async with streaming(it, max_tokens=2000) as caller:
            await until(lambda: bool(story.running), "it runs")
            for _ in range(made):
                story.step()
            if made:
                await caller.reader.readuntil(b"data: ")
            caller.writer.close()
            await until(lambda: not story.running, "its row is cancelled")
            await until(
                lambda: it.pool.lane_client("story").allocator.claimed == 0, "its slot is free"
            )
        assert counted(it) == {"cancelled": 1}
        assert_all_free(it)


@on_loop
async def test_a_caller_that_goes_before_its_whole_answer_gives_its_place_back() -> None:
    async with edge(Story) as it, serving(it) as site:
        it.pool.hold = True
        story = it.pool.stories["story"]
        async with calling(site) as caller:
            await caller.send(request(WHOLE, json.dumps(body(max_tokens=2000)).encode()))
            await until(lambda: bool(story.running), "it runs")
        await until(lambda: not story.running, "its row is cancelled")
        await until(lambda: it.pool.lane_client("story").allocator.claimed == 0, "its slot is free")


@on_loop
async def test_a_stream_ends_when_the_pool_stops() -> None:
    async with edge(Story) as it:
        it.pool.hold = True
        story = it.pool.stories["story"]
        async with streaming(it) as caller:
            await until(lambda: bool(story.running), "it runs")
            story.step()
            await caller.reader.readuntil(b"data: ")
            it.client_loop.close()
            await caller.reader.readuntil(b'"code":"pool_stopped"')
            await caller.reader.readuntil(b"0\r\n\r\n")


@on_loop
async def test_the_access_log_has_the_number_of_tokens(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="batchpool")
    async with edge(Story, server={"access_log": "all"}) as it:
        await it.http.post(WHOLE, json=body())
        await it.http.post(EVENTS, json=body(max_tokens=5))
        await it.http.post(EVENTS, json=body(first=-50))
    lines = [record.args for record in caplog.records if record.name == "batchpool.access"]
    fields = ("tokens", "rows", "status", "code")
    assert [tuple(line[field] for field in fields) for line in lines] == [  # type: ignore[call-overload, index]
        (3, 1, 200, "ok"), (5, 1, 200, "ok"), (2, 1, 200, "model_error"),
    ]  # fmt: skip


class WideStory(Story):
    token = bp.Tensor("token", "int32", (1 << 16,))
    max_tokens = 64


@on_loop
async def test_a_caller_that_takes_no_byte_is_cut_and_holds_neither_memory_nor_slot() -> None:
    limits = ConnectionLimits(stall_s=1.0)
    async with edge(WideStory, slots=4) as it, serving(it, limits) as site:
        it.pool.hold = True
        story = it.pool.stories["widestory"]
        with deaf_socket(site) as deaf:
            asked = json.dumps({"prompt": [10]}).encode()
            deaf.sendall(request("/v2/models/widestory/generate_stream", asked))
            await until(lambda: bool(story.running), "it runs")
            (connection,) = site.server.server_state.connections
            assert isinstance(connection, Connection)
            here = connection.transport.get_write_buffer_size
            while not connection.flow.write_paused:
                assert story.running[0].made < 60, "it is never told to wait"
                story.step()
                await asyncio.sleep(0.001)
            most = here()
            for _ in range(3):
                story.step()
                await asyncio.sleep(0.001)
            assert here() <= most, "what it does not take stays in the lane"
            await until(lambda: not story.running, "its row is cancelled")
            await until(lambda: not it.pool.lane_client("widestory").has_rows, "its slot is free")
