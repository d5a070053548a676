"""The official Python client of OpenAI, unmodified, at a real pool whose callers have keys."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lazy import library
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until
from tests.process.test_proxies import LOGGED, access_lines
from tests.process.web import ask

openai = library("openai")

KEY = "key-of-the-web"
WORDS = "tests.process.text_models:Words"
HALF_A_REQUEST = b"POST /v1/embeddings HTTP/1.1\r\nHost: pool\r\nContent-Length: 9\r\n"


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    file: Path = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(f"web:{KEY}\n")
    file.chmod(0o600)
    server = {**LOGGED, "api_keys_file": str(file), "receive_timeout_s": 3, "root_path": "/ai"}
    words = {"import": WORDS, "slots": 64, "max_batch": 8}
    with serving(words, "Affine", server=server) as running:
        running.tracebacks_expected = True  # of the model that raises
        yield running


def client(pool: Pool, key: str = KEY, prefix: str = "") -> openai.OpenAI:
    url = f"http://127.0.0.1:{pool.port}{prefix}/v1"
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=PATIENCE_S)


def refused(error: openai.APIStatusError) -> tuple[int, str | None, str | None, str | None]:
    return error.status_code, error.code, error.param, error.type


@pytest.mark.parametrize("prefix", ["", "/ai"])
def test_the_client_embeds_and_lists_also_under_a_prefix(pool: Pool, prefix: str) -> None:
    with client(pool, prefix=prefix) as caller:
        assert [model.id for model in caller.models.list()] == ["words", "affine"]
        assert caller.models.retrieve("words").owned_by == "batchpool"
        one = caller.embeddings.create(model="words", input="two words")
        assert one.data[0].embedding == [9.0, 2.0, float(ord("t"))]
        assert (one.usage.prompt_tokens, one.usage.total_tokens) == (2, 2)
        plain = caller.embeddings.create(model="words", input=["a", "b"], encoding_format="float")
        assert [each.embedding[2] for each in plain.data] == [97.0, 98.0]


def test_the_async_client_sends_more_texts_than_the_lane_has_slots(pool: Pool) -> None:
    async def call() -> list[float]:
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{pool.port}/v1", api_key=KEY, timeout=PATIENCE_S
        ) as caller:
            found = await caller.embeddings.create(
                model="words", input=["x" * (i % 100) for i in range(500)]
            )
            return [each.embedding[0] for each in found.data]

    assert asyncio.run(call()) == [i % 100 for i in range(500)]


def test_each_refusal_becomes_the_clients_own_exception(pool: Pool) -> None:
    with client(pool) as caller:
        with pytest.raises(openai.NotFoundError) as unknown:
            caller.embeddings.create(model="gone", input="a")
        kind = "invalid_request_error"
        assert refused(unknown.value) == (404, "not_found", "model", kind)
        with pytest.raises(openai.BadRequestError) as bad:
            caller.embeddings.create(model="words", input=["a", "refuse", "b"])
        assert refused(bad.value) == (400, "invalid_request", "input[1]", kind)
        assert "this is no text" in bad.value.message
        with pytest.raises(openai.InternalServerError) as failed:
            caller.embeddings.create(model="words", input=["a", "raise"])
        assert refused(failed.value) == (500, "model_error", "input[1]", "server_error")
        with pytest.raises(openai.APIStatusError) as long:
            caller.embeddings.create(model="words", input="x" * 257)
        assert refused(long.value) == (413, "too_large", "input", kind)
        assert long.value.request_id == long.value.response.headers["x-request-id"]
    with client(pool, "another-key") as stranger, pytest.raises(openai.AuthenticationError) as no:
        stranger.models.list()
    assert refused(no.value) == (401, "unauthorized", None, kind)


def test_a_request_that_does_not_arrive_is_408_in_the_same_shape(pool: Pool) -> None:
    connections = []
    for end in (b"Authorization: Bearer %s\r\n\r\n{" % KEY.encode(), b""):
        connection = socket.create_connection(("127.0.0.1", pool.port), PATIENCE_S)
        connection.sendall(HALF_A_REQUEST + end)
        connections.append(connection)
    for connection in connections:
        with connection:
            answer = b"".join(iter(lambda: connection.recv(65536), b""))  # noqa: B023
        assert b" 408 " in answer.partition(b"\r\n")[0]
        assert b'{"error":{"message":"' in answer
        assert b'"code":"request_timeout"' in answer


def test_calls_stand_in_the_access_log_and_in_the_metrics(pool: Pool) -> None:
    with client(pool) as caller:
        headers = {"X-Request-Id": "embedding-1"}
        answer = caller.embeddings.with_raw_response.create(
            model="words", input=["a", "b"], extra_headers=headers
        )
        assert answer.headers["x-request-id"] == "embedding-1"

    def lines() -> list[dict[str, object]]:
        return [line for line in access_lines(pool) if line["request_id"] == "embedding-1"]

    (line,) = until(lines, "the line of the call")
    assert (line["path"], line["model"], line["rows"]) == ("/v1/embeddings", "words", 2)
    assert (line["key"], line["road"], line["code"]) == ("web", "asgi", "ok")
    metrics = ask(pool, "/metrics", headers={"Authorization": f"Bearer {KEY}"}).body.decode()
    counted = [line for line in metrics.splitlines() if "http_requests_total{" in line]
    assert any('"words"' in line and '"200"' in line for line in counted)


def test_rows_of_a_caller_that_leaves_are_taken_back(pool: Pool) -> None:
    body = json.dumps({"model": "words", "input": ["wait"] * 20}).encode()
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: pool\r\n"
    head += b"Authorization: Bearer %s\r\n" % KEY.encode()
    with socket.create_connection(("127.0.0.1", pool.port), PATIENCE_S) as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        until(lambda: pool.tally("words")["queued"], "queued rows")
    until(lambda: pool.tally("words")["cancelled"], "cancelled rows")
    (pool.notes / "go").touch()
    with client(pool) as caller:
        assert caller.embeddings.create(model="words", input="a").usage.total_tokens == 1
