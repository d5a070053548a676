"""Completions, chats and texts of generate of a real pool, with OpenAI's client and with bytes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lazy import library
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until
from tests.process.web import ask
from tests.unit.text.tokenizers_made import byte_level, saved

openai = library("openai")
library("tokenizers")

LETTERS = "tests.process.letter_models:Letters"
LETTERS_AT = "/v2/models/letters"
HI = [{"role": "user", "content": "a"}]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    path = saved(byte_level(), tmp_path_factory.mktemp("tokenizer"))
    letters = {"import": LETTERS, "options": {"tokenizer": str(path)}, "slots": 32, "max_batch": 8}
    letters["max_wait_ms"] = None  # which generators do not have
    with serving(letters, "Affine") as running:
        yield running


def client(pool: Pool) -> openai.OpenAI:
    url = f"http://127.0.0.1:{pool.port}/v1"
    return openai.OpenAI(base_url=url, api_key="a", max_retries=0, timeout=PATIENCE_S)


def test_completions_and_chats_whole_and_as_streams(pool: Pool) -> None:
    with client(pool) as caller:
        assert [model.id for model in caller.models.list()] == ["letters", "affine"]
        found = caller.completions.create(
            model="letters", prompt=["a", "k", [66, 67]][:2], max_tokens=3, temperature=0.5
        )
        assert [choice.text for choice in found.choices] == ["bcd", "lmn"]
        assert found.usage.total_tokens == 8
        chat = caller.chat.completions.create(model="letters", messages=HI)
        (choice,) = chat.choices
        assert (choice.message.content, choice.finish_reason) == (
            "bcdefghijklmnopqrstuvwxyz", "stop",
        )  # fmt: skip
        stream = caller.chat.completions.create(
            model="letters", messages=HI, stop="jk", stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        *parts, usage = list(stream)
        assert "".join(part.choices[0].delta.content or "" for part in parts) == "bcdefghi"
        assert parts[-1].choices[0].finish_reason == "stop"
        assert usage.usage.completion_tokens == 10


def test_a_refusal_before_the_first_token_keeps_its_status(pool: Pool) -> None:
    with client(pool) as caller:
        with pytest.raises(openai.BadRequestError, match=r"at most 256") as caught:
            caller.completions.create(model="letters", prompt="zyx " * 9000, stream=True)
        assert (caught.value.param, caught.value.code) == ("prompt", "invalid_request")
        with pytest.raises(openai.BadRequestError) as caught:
            caller.completions.create(model="affine", prompt="a")
        assert caught.value.param == "model"


def test_a_stream_goes_on_when_its_worker_dies(pool: Pool) -> None:
    with client(pool) as caller:
        stream = caller.completions.create(model="letters", prompt="Ka", max_tokens=20, stream=True)
        assert "".join(part.choices[0].text for part in stream) == "bcdefghijklmnopqrstu"
        assert (pool.notes / "killed").exists()


def test_callers_that_leave_take_their_sequences_back(pool: Pool) -> None:
    with client(pool) as caller:
        streams = [
            caller.completions.create(model="letters", prompt="a", max_tokens=64, stream=True)
            for _ in range(3)
        ]

    async def leave() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{pool.port}/v1", api_key="a", timeout=PATIENCE_S
        ) as caller:
            calls = [
                asyncio.create_task(caller.completions.create(model="letters", prompt="W"))
                for _ in range(20)
            ]
            await asyncio.to_thread(
                until, lambda: pool.tally("letters")["queued"] >= 12, "rows that wait"
            )
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    for stream in streams:
        stream.close()
    asyncio.run(leave())
    until(lambda: pool.tally("letters")["cancelled"] >= 20, "cancelled rows")
    with client(pool) as caller:
        assert caller.completions.create(model="letters", prompt="a").choices[0].text


def test_the_events_as_curl_shows_them(pool: Pool) -> None:
    content = json.dumps({"model": "letters", "prompt": "a", "max_tokens": 3, "stream": True})
    url = f"http://127.0.0.1:{pool.port}/v1/completions"
    command = ["curl", "-sN", "--max-time", str(PATIENCE_S), url, "-d", content]
    events = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    *parts, done, rest = events.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    texts = [json.loads(part.removeprefix("data: "))["choices"][0]["text"] for part in parts]
    assert "".join(texts) == "bcd"


def test_generate_takes_a_text_too_and_answers_with_text(pool: Pool) -> None:
    asked: dict[str, Any] = {"text_input": "a", "parameters": {"max_tokens": 9, "stop": "fg"}}
    whole = json.loads(ask(pool, f"{LETTERS_AT}/generate", json.dumps(asked).encode()).body)
    assert (whole["text_output"], whole["finish_reason"]) == ("bcde", "stop")
    asked = {"text_input": "a", "max_tokens": 3}
    content = json.dumps(asked).encode()
    sent = ask(pool, f"{LETTERS_AT}/generate_stream", content).body.decode()
    events = [json.loads(part.removeprefix("data: ")) for part in sent.split("\n\n")[:-1]]
    assert "".join(event["text_output"] for event in events) == "bcd"
    assert events[-1]["finish_reason"] == "length"


def test_the_document_of_the_api_tells_of_them(pool: Pool) -> None:
    paths = json.loads(ask(pool, "/openapi.json").body)["paths"]
    assert {"/v1/completions", "/v1/chat/completions"} <= set(paths)


def test_a_tokenizer_that_is_missing_ends_the_start_with_its_path(tmp_path: Path) -> None:
    config = tmp_path / "pool.toml"
    config.write_text(
        f'[[model]]\nimport = "{LETTERS}"\n[model.options]\ntokenizer = "gone.json"\n'
    )
    command = [sys.executable, "-P", "-m", "batchpool", "check", str(config)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode != 0
    assert "gone.json' is no file" in ended.stderr + ended.stdout
