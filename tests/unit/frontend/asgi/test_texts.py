"""Completions and chats in memory: the official client, limits, stop strings, many prompts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from batchpool.core.layout.states import LaneGate, SlotState
from batchpool.wire import completions
from tests.lazy import library
from tests.unit.frontend.frontend_double import Edge, edge
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine
from tests.unit.frontend.story_double import Story
from tests.unit.frontend.text_story import tale

openai = library("openai")
library("tokenizers")

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
HI = [{"role": "user", "content": "a"}]


def client(of: Edge) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url="http://pool/v1", api_key="any", http_client=of.http, max_retries=0
    )


def body(**members: Any) -> bytes:
    return json.dumps({"model": "tale", "prompt": "a", **members}).encode()


def refused(answer: httpx.Response) -> tuple[int, str, str | None, str]:
    """(status, code, param, message) of an error in OpenAI's shape."""
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"], error["message"]


def assert_all_free(it: Edge) -> None:
    lane_client = it.pool.lane_client("tale")
    assert lane_client.allocator.claimed == 0
    assert (lane_client.lane.state == SlotState.FREE).all()
    assert it.view.memory.held_bytes == 0


@on_loop
async def test_a_completion_has_its_text_reason_and_usage(tmp_path: Path) -> None:
    async with edge(tale(tmp_path)) as it:
        found = await client(it).completions.create(
            model="tale", prompt="a", max_tokens=5, temperature=0, n=1, user="me", seed=1
        )
        (choice,) = found.choices
        assert (choice.text, choice.finish_reason, choice.index) == ("bcdef", "length", 0)
        assert (found.object, found.model, found.id[:5]) == ("text_completion", "tale", "cmpl-")
        usage = found.usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (1, 5, 6)
        by_default = await client(it).completions.create(model="tale", prompt="a")
        assert by_default.choices[0].text == "bcdefghijklmnopq"
        assert_all_free(it)


@on_loop
async def test_a_default_is_what_a_long_prompt_leaves_room_for(tmp_path: Path) -> None:
    async with edge(tale(tmp_path)) as it:
        prompts = ["a" * 60, "a" * 64]
        found = await client(it).completions.create(model="tale", prompt=prompts)
        assert [choice.text for choice in found.choices] == ["bcdef", "b"]
        assert {choice.finish_reason for choice in found.choices} == {"length"}
        asked = await client(it).completions.create(model="tale", prompt="a" * 60, max_tokens=7)
        assert asked.choices[0].text == "bcdefgh"  # the generator says itself what it has room for


@pytest.mark.parametrize("prompt", [["a", "k", "A"], [[66], [76], [34]], [66], "a", ["a"] * 9])
@on_loop
async def test_each_prompt_has_its_own_text(tmp_path: Path, prompt: Any) -> None:
    async with edge(tale(tmp_path), slots=4) as it:
        found = await client(it).completions.create(model="tale", prompt=prompt, max_tokens=2)
        expected = ["bc", "lm", "BC"] if len(prompt) == 3 else ["bc"] * len(prompt)
        assert [choice.text for choice in found.choices] == expected
        assert [choice.index for choice in found.choices] == list(range(len(prompt)))
        assert found.usage.prompt_tokens == len(prompt)
        assert found.usage.completion_tokens == 2 * len(prompt)
        assert_all_free(it)


@on_loop
async def test_the_events_of_a_stream(tmp_path: Path) -> None:
    async with edge(tale(tmp_path)) as it:
        answer = await it.http.post(
            COMPLETIONS,
            content=body(max_tokens=4, stream=True, stream_options={"include_usage": True}),
        )
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        events = answer.text.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        assert answer.text.count("[DONE]") == 1
        chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
        assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
        *texts, end, usage = chunks
        assert "".join(chunk["choices"][0]["text"] for chunk in texts) == "bcde"
        assert end["choices"][0] == {
            "index": 0, "text": "", "logprobs": None, "finish_reason": "length",
        }  # fmt: skip
        assert all(chunk["usage"] is None for chunk in [*texts, end])
        assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 4)
        assert_all_free(it)


@on_loop
async def test_a_stream_of_several_prompts(tmp_path: Path) -> None:
    async with edge(tale(tmp_path), slots=4) as it:
        stream = await client(it).completions.create(
            model="tale", prompt=["a", "A", "0", "k", "f"], max_tokens=3, stream=True
        )
        texts, reasons = [""] * 5, []
        async for chunk in stream:
            (choice,) = chunk.choices
            texts[choice.index] += choice.text
            reasons += [choice.finish_reason] if choice.finish_reason else []
        assert texts == ["bcd", "BCD", "123", "lmn", "ghi"]
        assert reasons == ["length"] * 5
        assert_all_free(it)


@on_loop
async def test_a_chat_whole_and_as_a_stream(tmp_path: Path) -> None:
    async with edge(tale(tmp_path)) as it:
        create = client(it).chat.completions.create
        parts = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
        found = await create(model="tale", messages=parts, max_completion_tokens=3, max_tokens=9)
        (choice,) = found.choices
        assert (choice.message.role, choice.message.content) == ("assistant", "bcd")
        assert (choice.finish_reason, found.object) == ("length", "chat.completion")
        options = {"include_usage": True}
        stream = await create(
            model="tale", messages=HI, max_tokens=3, stream=True, stream_options=options
        )
        first, *rest = [chunk async for chunk in stream]
        assert first.object == "chat.completion.chunk"
        assert first.choices[0].delta.role == "assistant"
        assert first.choices[0].delta.content == ""
        *texts, end, usage = rest
        assert "".join(chunk.choices[0].delta.content or "" for chunk in texts) == "bcd"
        assert (end.choices[0].delta.content, end.choices[0].finish_reason) == (None, "length")
        assert (usage.choices, usage.usage.total_tokens) == ([], 4)
        # Without a limit it goes on to the generator's own, or to its last token.
        whole = await create(model="tale", messages=HI)
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage.completion_tokens == 34
        assert_all_free(it)


@pytest.mark.parametrize("stream", [False, True])
@on_loop
async def test_a_stop_string_ends_the_text_and_its_sequence(tmp_path: Path, stream: bool) -> None:
    async with edge(tale(tmp_path)) as it:
        story = it.pool.stories["tale"]
        asked = {"max_tokens": 30, "stop": ["xyz", "fgh"], "stream": stream}
        answer = await it.http.post(COMPLETIONS, content=body(**asked))
        if stream:
            assert "f" not in "".join(
                json.loads(event[6:])["choices"][0]["text"]
                for event in answer.text.split("\n\n")[:-2]
            )
            assert '"finish_reason":"stop"' in answer.text
        else:
            (choice,) = answer.json()["choices"]
            assert (choice["text"], choice["finish_reason"]) == ("bcde", "stop")
            assert answer.json()["usage"]["completion_tokens"] == 7
        await until(lambda: not story.running, "the sequence is taken back")
        await until(lambda: it.pool.lane_client("tale").allocator.claimed == 0, "a free slot")
        beyond = await it.http.post(COMPLETIONS, content=body(max_tokens=4, stop="fgh"))
        assert beyond.json()["choices"][0] == {
            "index": 0, "text": "bcde", "logprobs": None, "finish_reason": "length",
        }  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "members", "expected", "text"),
    [
        (COMPLETIONS, {"model": "gone"}, (404, "not_found", "model"), "no model 'gone'"),
        (COMPLETIONS, {"model": "affine"}, (400, "invalid_request", "model"), "affine/infer"),
        (COMPLETIONS, {"model": "story"}, (400, "invalid_request", "model"), "story/generate"),
        (COMPLETIONS, {"prompt": ""}, (400, "invalid_request", "prompt"), "is empty"),
        (COMPLETIONS, {"prompt": ["a", "zx " * 50]}, (400, "invalid_request", "prompt[1]"),
         "tokens; the model takes at most 64"),
        (COMPLETIONS, {"prompt": [10**9]}, (400, "invalid_request", "prompt"), "the token 1000"),
        (COMPLETIONS, {"prompt": "the dog. " * 30_000}, (400, "invalid_request", "prompt"),
         "has more than"),
        (COMPLETIONS, {"n": 2}, (400, "invalid_request", "n"), "1 was expected"),
        (COMPLETIONS, {"max_tokens": 2001}, (400, "invalid_request", "max_tokens"), "most 2000"),
        (COMPLETIONS, {"prompt": [1] * 65}, (400, "invalid_request", "prompt"),
         "the prompt has 65 tokens; the model takes at most 64"),
        (COMPLETIONS, {"prompt": [[1], [1] * 200]}, (400, "invalid_request", "prompt"),
         "at least 101 tokens; the model takes at most 64"),
        (COMPLETIONS, {"prompt": "a" * 330_000}, (413, "too_large", None),
         "at most 327680 are taken here: shorten the prompt"),
        (CHATS, {"prompt": None, "messages": [{"role": "user", "content": "a" * 270_000}]},
         (413, "too_large", None), "at most 266240 are taken here: shorten the prompt"),
        (CHATS, {"prompt": None, "messages": []}, (400, "invalid_request", "messages"), "empty"),
        (CHATS, {"prompt": None, "messages": [{"role": "user", "content": "zx " * 50}]},
         (400, "invalid_request", "messages"), "takes at most 64"),
        (CHATS, {"messages": HI}, (400, "invalid_request", "prompt"), "unknown member"),
    ],
)  # fmt: skip
@on_loop
async def test_a_refusal_keeps_its_status_also_where_a_stream_was_asked_for(
    tmp_path: Path, path: str, members: Any, expected: Any, text: str, stream: bool
) -> None:
    async with edge(tale(tmp_path), Affine, Story) as it:
        answer = await it.http.post(path, content=body(**members, stream=stream))
        assert refused(answer)[:3] == expected
        assert text in refused(answer)[3]
        assert_all_free(it)


@on_loop
async def test_numbers_that_no_prompt_has_room_for_are_never_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their commas, and for a model that is not there not even that."""
    made: list[Any] = []

    def prompts(raw: Any) -> Any:
        made.append(raw)
        return [[1]], False

    monkeypatch.setattr(completions, "_prompts", prompts)
    async with edge(tale(tmp_path)) as it:
        for members, status in (({}, 400), ({"model": "gone"}, 404)):
            for prompt in ([1] * 65, [[1, 2]] * 9 + [[1] * 9999]):
                answer = await it.http.post(COMPLETIONS, content=body(prompt=prompt, **members))
                assert answer.status_code == status
        assert made == []
        assert (await it.http.post(COMPLETIONS, content=body(prompt=[1] * 64))).status_code == 200
        assert len(made) == 1


@on_loop
async def test_a_model_without_a_chat_template_has_completions_only(tmp_path: Path) -> None:
    async with edge(tale(tmp_path, template="")) as it:
        answer = await it.http.post(CHATS, json={"model": "tale", "messages": HI})
        assert refused(answer)[:3] == (400, "invalid_request", "model")
        assert "/v1/completions" in refused(answer)[3]
        assert (await it.http.post(COMPLETIONS, content=body())).status_code == 200


@on_loop
async def test_long_prompts_are_encoded_in_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with edge(tale(tmp_path)) as it:
        await it.http.post(COMPLETIONS, content=body())
        run, works = it.view.background.run, []

        def noted(flow: int, work: Any, *rest: Any, **more: Any) -> Any:
            works.append(getattr(work, "func", work).__name__)
            return run(flow, work, *rest, **more)

        monkeypatch.setattr(it.view.background, "run", noted)
        await it.http.post(COMPLETIONS, content=body(prompt="the dog " * 400))
        assert works == []
        await it.http.post(COMPLETIONS, content=body(prompt="the dog " * 1000))
        assert works == ["_prompts_of_completion"]
        await it.http.post(COMPLETIONS, content=body(prompt="the dog " * 36_000))
        assert works[1:] == ["read_completion_request", "_prompts_of_completion"]
        await it.http.post(COMPLETIONS, content=body(prompt=[[66] * 60] * 100))
        await it.http.post(CHATS, json={"model": "tale", "messages": HI * 100})
        assert works[3:] == ["_prompts_of_completion", "_prompts_of_chat"]


@on_loop
async def test_a_full_lane_is_503_and_a_closed_one_too(tmp_path: Path) -> None:
    async with edge(tale(tmp_path), slots=4) as it:
        it.pool.hold = True
        held = [asyncio.create_task(it.http.post(COMPLETIONS, content=body())) for _ in range(3)]
        await until(lambda: it.pool.lane_client("tale").allocator.claimed == 3, "three held")
        answer = await it.http.post(COMPLETIONS, content=body(stream=True))
        assert refused(answer)[:3] == (503, "overloaded", None)
        assert int(answer.headers["retry-after-ms"]) >= 1
        it.pool.release()
        assert [(await each).status_code for each in held] == [200] * 3
        it.pool.lane_client("tale").lane.gate.set(LaneGate.DRAINING)
        assert refused(await it.http.post(COMPLETIONS, content=body()))[:2] == (503, "draining")


@on_loop
async def test_the_deadline_of_the_header_is_504(tmp_path: Path) -> None:
    async with edge(tale(tmp_path)) as it:
        it.pool.hold = True
        headers = {"X-Request-Timeout-Ms": "20"}
        answer = await it.http.post(COMPLETIONS, content=body(stream=True), headers=headers)
        assert refused(answer)[:3] == (504, "deadline_exceeded", None)


@on_loop
async def test_generators_are_among_the_models_and_counted(tmp_path: Path) -> None:
    async with edge(tale(tmp_path), Affine) as it:
        assert [each.id for each in (await client(it).models.list()).data] == ["tale", "affine"]
        await it.http.post(COMPLETIONS, content=body(stream=True))
        await it.http.post(COMPLETIONS, content=body(n=2))
        totals = it.counters.totals()
        assert totals.values("http_requests_total", "code", model="tale", road="asgi") == {
            "200": 1, "400": 1,
        }  # fmt: skip


@on_loop
async def test_a_tokenizer_that_is_gone_is_500_for_its_model_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with edge(tale(tmp_path, tokenizer=tmp_path / "gone.json"), Affine) as it:
        answer = await it.http.post(COMPLETIONS, content=body())
        assert refused(answer)[:2] == (500, "internal")
        assert "gone.json" in caplog.text
        assert (await it.http.get("/v1/models/affine")).status_code == 200
