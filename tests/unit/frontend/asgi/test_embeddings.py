"""OpenAI's routes in memory: embeddings, the list of models, and the shape of every error."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from typing import Any

import httpx
import numpy as np
import pytest

from batchpool.core.layout.states import LaneGate
from tests.lazy import library
from tests.unit.frontend.frontend_double import Edge, edge
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine, Echo, Embed

openai = library("openai")

URL = "/v1/embeddings"


def client(of: Edge) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url="http://pool/v1", api_key="any", http_client=of.http, max_retries=0
    )


def body(**members: Any) -> bytes:
    return json.dumps({"model": "embed", "input": "Hi", **members}).encode()


def vector(text: str) -> list[float]:
    first = text.encode()[0] if text else 0
    numbers: list[float] = np.array([len(text.encode()), first, 0.1, -3.5e-7], np.float32).tolist()
    return numbers


def refused(answer: httpx.Response) -> tuple[int, str, str | None]:
    """(status, code, param) of an error in OpenAI's shape."""
    assert set(answer.json()) == {"error"}
    error = answer.json()["error"]
    assert isinstance(error["message"], str)
    kind = "server_error" if answer.status_code >= 500 else "invalid_request_error"
    assert error["type"] == kind
    return answer.status_code, error["code"], error["param"]


@on_loop
async def test_the_official_client_gets_its_vectors_in_the_order_of_its_texts() -> None:
    async with edge(Embed, Affine, slots=16) as it:
        every: list[dict[str, Any]] = [
            {},
            {"encoding_format": "float"},
            {"encoding_format": "base64"},
        ]
        for options in every:
            found = await client(it).embeddings.create(
                model="embed", input=["one", "two words", ""], user="me", dimensions=4, **options
            )
            assert found.object == "list"
            assert found.model == "embed"
            assert [each.index for each in found.data] == [0, 1, 2]
            vectors: list[Any] = [each.embedding for each in found.data]
            if options.get("encoding_format") == "base64":
                vectors = [np.frombuffer(base64.b64decode(v), "<f4").tolist() for v in vectors]
            assert vectors == [vector("one"), vector("two words"), vector("")]
            assert found.usage.prompt_tokens == found.usage.total_tokens == 3


@on_loop
async def test_one_text_without_a_format_comes_as_numbers() -> None:
    async with edge(Embed, slots=8) as it:
        answer = await it.http.post(URL, content=body(input="grün"))
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        (only,) = answer.json()["data"]
        assert only == {"object": "embedding", "index": 0, "embedding": vector("grün")}


@on_loop
async def test_declared_parameters_reach_the_model() -> None:
    async with edge(Embed, slots=8) as it:
        found = await client(it).embeddings.create(
            model="embed", input="ab", extra_body={"parameters": {"scale": 2.0}}
        )
        assert found.data[0].embedding[0] == 4.0
        wrong = await it.http.post(URL, content=body(parameters={"pace": 1}))
        assert refused(wrong) == (400, "invalid_request", "parameters")


@on_loop
async def test_the_models_are_listed_and_told_one_by_one() -> None:
    async with edge(Embed, Affine, slots=8) as it:
        listed = await client(it).models.list()
        assert [each.id for each in listed.data] == ["embed", "affine"]
        one = await client(it).models.retrieve("affine")
        assert one == listed.data[1]
        assert (one.object, one.owned_by) == ("model", "batchpool")
        assert one.created > 1_700_000_000
        with pytest.raises(openai.NotFoundError) as caught:
            await client(it).models.retrieve("gone")
        assert (caught.value.code, caught.value.param) == ("not_found", "model")


@pytest.mark.parametrize(
    ("members", "expected", "text"),
    [
        ({"model": "g" * 500}, (404, "not_found", "model"), "there is no model 'ggg"),
        ({"model": "gone"}, (404, "not_found", "model"), "the server has 'embed', 'affine'"),
        ({"model": "affine"}, (400, "invalid_request", "model"), "/v2/models/affine/infer"),
        ({"input": []}, (400, "invalid_request", "input"), "at least one text"),
        ({"input": [[1, 2], [3]]}, (400, "invalid_request", "input[0]"), "token ids"),
        ({"input": [1, 2]}, (400, "invalid_request", "input[0]"), "input[0] is 1; a text was exp"),
        ({"input": ["a", None]}, (400, "invalid_request", "input[1]"), "input[1] is null; a text"),
        ({"input": 5}, (400, "invalid_request", "input"), "input is 5; a text or a list"),
        ({"input": None}, (400, "invalid_request", "input"), "input is null; a text or a list"),
        ({"input": {"a": "b" * 99}}, (400, "invalid_request", "input"), "bbbb...; a text or"),
        ({"input": "x" * 65}, (413, "too_large", "input"), "input has 65 bytes; at most 64"),
        ({"input": ["a", "x" * 65]}, (413, "too_large", "input[1]"), "input[1] has 65 bytes"),
        ({"input": ["a"] * 2049}, (413, "too_large", "input"), "at most 2048"),
        ({"dimensions": 3}, (400, "invalid_request", "dimensions"), "have 4"),
        ({"dimensions": "4"}, (400, "invalid_request", "dimensions"), 'dimensions is "4"; a whole'),
        (
            {"encoding_format": "int8"},
            (400, "invalid_request", "encoding_format"),
            'encoding_format is "int8"; "float" or "base64" was expected',
        ),
        ({"input_type": "query"}, (400, "invalid_request", "input_type"), "unknown member"),
        ({"input": "no"}, (400, "invalid_request", "input"), "no is no text"),
        ({"input": ["a", "b", "no"]}, (400, "invalid_request", "input[2]"), "no is no text"),
    ],
)
def test_a_refusal_names_the_member_that_is_at_fault(
    members: dict[str, Any], expected: tuple[int, str, str], text: str
) -> None:
    @on_loop
    async def ask() -> None:
        async with edge(Embed, Affine, slots=8) as it:
            answer = await it.http.post(URL, content=body(**members))
            assert refused(answer) == expected
            assert text in answer.json()["error"]["message"]

    ask()


@on_loop
async def test_the_models_details_stand_in_the_error() -> None:
    async with edge(Embed, slots=8) as it:
        with pytest.raises(openai.BadRequestError) as caught:
            await client(it).embeddings.create(model="embed", input=["a", "no"])
        told: Any = caught.value.body
        assert (told["details"], told["row"]) == ({"offset": 0}, 1)
        assert caught.value.request_id


@pytest.mark.parametrize("raw", [b"", b"[1]", b"{", b'{"input": "a"}', b"\xff", b"[" * 5000])
def test_a_body_that_is_no_request_is_400(raw: bytes) -> None:
    @on_loop
    async def ask() -> None:
        async with edge(Embed, slots=8) as it:
            assert refused(await it.http.post(URL, content=raw))[:2] == (400, "invalid_request")

    ask()


@on_loop
async def test_paths_and_methods_that_are_none_are_told_in_the_same_shape() -> None:
    async with edge(Embed, slots=8) as it:
        unknown = await it.http.post("/v1/audio/speech", content=b"{}")
        assert refused(unknown) == (404, "not_found", None)
        assert refused(await it.http.get(URL)) == (405, "method_not_allowed", None)
        assert (await it.http.get("/v2/models/v1/ready")).json()["code"] == "not_found"


@on_loop
async def test_more_texts_than_the_lane_takes_at_once_go_in_windows() -> None:
    async with edge(Embed, slots=16, max_batch=4) as it:
        texts = ["x" * (i % 60) for i in range(100)]
        found = await client(it).embeddings.create(model="embed", input=texts)
        assert [each.embedding[0] for each in found.data] == [len(text) for text in texts]
        assert it.pool.lane_client("embed").allocator.claimed == 0
        texts[77] = "no"
        with pytest.raises(openai.BadRequestError) as caught:
            await client(it).embeddings.create(model="embed", input=texts)
        assert caught.value.param == "input[77]"
        await until(lambda: it.pool.lane_client("embed").allocator.claimed == 0, "free slots")


@on_loop
async def test_a_full_lane_is_503_with_both_retry_headers() -> None:
    async with edge(Embed, slots=4, max_batch=2) as it:
        it.pool.hold = True
        held = [asyncio.create_task(it.http.post(URL, content=body())) for _ in range(3)]
        await until(lambda: it.pool.lane_client("embed").allocator.claimed == 3, "three held")
        answer = await it.http.post(URL, content=body(input=["a"] * 3))
        assert refused(answer) == (503, "overloaded", None)
        assert int(answer.headers["retry-after"]) >= 1
        assert int(answer.headers["retry-after-ms"]) == answer.json()["error"]["retry_after_ms"]
        it.pool.release()
        assert [(await each).status_code for each in held] == [200, 200, 200]


@on_loop
async def test_the_deadline_of_the_header_is_504() -> None:
    async with edge(Embed, slots=8) as it:
        it.pool.hold = True
        answer = await it.http.post(URL, content=body(), headers={"X-Request-Timeout-Ms": "20"})
        assert refused(answer) == (504, "deadline_exceeded", None)


@on_loop
async def test_a_closed_gate_is_503() -> None:
    async with edge(Embed, slots=8) as it:
        it.pool.lane_client("embed").lane.gate.set(LaneGate.DRAINING)
        assert refused(await it.http.post(URL, content=body()))[:2] == (503, "draining")


@on_loop
async def test_compressed_and_long_bodies_are_read() -> None:
    async with edge(Embed, Echo, slots=64) as it:
        packed = gzip.compress(body(input=["a", "bc"]))
        answer = await it.http.post(URL, content=packed, headers={"Content-Encoding": "gzip"})
        assert [each["embedding"][0] for each in answer.json()["data"]] == [1, 2]
        spaces = b" " * (300 << 10)
        assert (await it.http.post(URL, content=body() + spaces)).status_code == 200
        many = body(input=[""] * 100_000)
        answer = await it.http.post(URL, content=many)
        assert refused(answer) == (413, "too_large", "input")
        whole = body() + b" " * (8 << 20)
        assert refused(await it.http.post(URL, content=whole)) == (413, "too_large", None)


@on_loop
async def test_requests_are_counted_at_their_model() -> None:
    async with edge(Embed, slots=8) as it:
        await it.http.post(URL, content=body())
        await it.http.post(URL, content=body(input="no"))
        await it.http.post(URL, content=body(model="gone"))
        totals = it.counters.totals()
        assert totals.values("http_requests_total", "code", model="embed", road="asgi") == {
            "200": 1, "400": 1,
        }  # fmt: skip
        assert totals.values("http_requests_total", "reason", model="") == {"not_found": 1}
