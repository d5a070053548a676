"""Infer over the application: forms, outputs, ids, rows that keep to their callers."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
import zlib
from typing import Any

import msgspec
import numpy as np
import pytest

from batchpool.core.layout.states import SlotState
from batchpool.frontend.http.background import BackgroundThread
from tests.unit.frontend.calls import (
    affine,
    affine_answer,
    binary,
    numbers,
    packed,
    split,
    strict,
)
from tests.unit.frontend.frontend_double import Edge, edge, gathered
from tests.unit.frontend.loops import on_loop
from tests.unit.frontend.models import Affine, Echo, Picky, Two, Wide

INFER = "/v2/models/affine/infer"


def assert_all_free(it: Edge, model: str) -> None:
    lane_client = it.pool.lane_client(model)
    assert lane_client.allocator.claimed == 0
    assert (lane_client.lane.state == SlotState.FREE).all()


@pytest.mark.parametrize("path", [INFER, "/v2/models/affine/versions/1/infer"])
@on_loop
async def test_json_to_json(path: str) -> None:
    """C51: with and without version, the answer in full."""
    async with edge(Affine) as it:
        answer, tail = split(await it.http.post(path, json=affine(1, 2.5, id="one")))
        assert tail == b""
        assert answer == {
            "id": "one",
            "model_name": "affine",
            "model_version": "1",
            "outputs": [
                {"name": "y", "datatype": "FP32", "shape": [2, 4], "data": affine_answer(1, 2.5)}
            ],
        }
        assert_all_free(it, "affine")


@on_loop
async def test_binary_both_ways() -> None:
    """C51: binary in and out, with the size in the JSON and no id."""
    async with edge(Affine) as it:
        x = np.arange(12, dtype="f4").reshape(3, 4)
        headers, body = binary({"parameters": {"binary_data_output": True}}, ("x", "FP32", x))
        answer, tail = split(await it.http.post(INFER, headers=headers, content=body))
        assert "id" not in answer
        assert answer["outputs"][0]["parameters"] == {"binary_data_size": 48}
        assert np.array_equal(np.frombuffer(tail, "f4").reshape(3, 4), x * 2 + 1)


@on_loop
async def test_raw_form() -> None:
    async with edge(Affine) as it:
        x = np.arange(8, dtype="f4")
        headers = {"Inference-Header-Content-Length": "0"}
        answer, tail = split(await it.http.post(INFER, headers=headers, content=x.tobytes()))
        assert answer["outputs"][0]["shape"] == [2, 4]
        assert np.array_equal(np.frombuffer(tail, "f4"), x * 2 + 1)


@on_loop
async def test_msgpack_form() -> None:
    async with edge(Affine) as it:
        x = np.arange(4, dtype="f4").reshape(1, 4)
        tensor = {"dtype": "FP32", "shape": [1, 4], "data": x.tobytes()}
        answer = await it.http.post(
            INFER,
            headers={"Content-Type": "application/msgpack"},
            content=packed({"id": "m", "inputs": {"x": tensor}}),
        )
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/msgpack"
        found = msgspec.msgpack.decode(answer.content)
        assert found["id"] == "m"
        assert found["outputs"]["y"]["data"] == (x * 2 + 1).tobytes()


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@on_loop
async def test_compressed_both_ways(coding: str) -> None:
    async with edge(Affine) as it:
        plain = json.dumps(affine(*range(50))).encode()
        body = gzip.compress(plain) if coding == "gzip" else zlib.compress(plain)
        answer = await it.http.post(
            INFER, headers={"Content-Encoding": coding, "Accept-Encoding": coding}, content=body
        )
        assert answer.headers["content-encoding"] == coding
        assert answer.json()["outputs"][0]["data"] == affine_answer(*range(50))  # httpx unpacks


@on_loop
async def test_small_answers_are_not_compressed() -> None:
    async with edge(Affine) as it:
        answer = await it.http.post(INFER, headers={"Accept-Encoding": "gzip"}, json=affine(1))
        assert "content-encoding" not in answer.headers


@on_loop
async def test_more_rows_than_a_batch_are_split_and_joined() -> None:
    """C12: over HTTP as well."""
    async with edge(Affine, slots=64, max_batch=16) as it:
        answer, _ = split(await it.http.post(INFER, json=affine(*range(57))))
        assert answer["outputs"][0]["shape"] == [57, 4]
        assert answer["outputs"][0]["data"] == affine_answer(*range(57))
        assert_all_free(it, "affine")


def tagged(tag: int, **more: Any) -> dict[str, Any]:
    return {"inputs": [numbers("tag", np.array([[tag]]), "INT64")], **more}


@on_loop
async def test_only_the_outputs_asked_for_come_in_the_order_asked() -> None:
    """C04, C16: of two outputs the second alone, if so asked."""
    async with edge(Two) as it:
        path = "/v2/models/two/infer"
        answer, _ = split(await it.http.post(path, json=tagged(3)))
        assert [o["name"] for o in answer["outputs"]] == ["same", "scaled"]
        only = tagged(3, outputs=[{"name": "scaled"}])
        answer, _ = split(await it.http.post(path, json=only))
        assert answer["outputs"] == [
            {"name": "scaled", "datatype": "INT64", "shape": [1, 1], "data": [30]}
        ]
        turned = tagged(3, outputs=[{"name": "scaled"}, {"name": "same"}])
        answer, _ = split(await it.http.post(path, json=turned))
        assert [o["data"] for o in answer["outputs"]] == [[30], [3]]


@on_loop
async def test_settings_of_requests_in_one_batch_are_not_mixed() -> None:
    """C16: ids, outputs, encodings and parameters of 60 requests."""
    async with edge(Two, slots=128, max_batch=64) as it:
        Two.batches.clear()

        async def ask(tag: int) -> None:
            more: dict[str, Any] = {"id": f"r{tag}"}
            scale = 10
            if tag % 2:
                scale = tag
                more["parameters"] = {"scale": scale}
            wanted = [["same"], ["scaled"], ["scaled", "same"]][tag % 3]
            as_bytes = tag % 5 == 0
            more["outputs"] = [
                {"name": name, "parameters": {"binary_data": as_bytes}} for name in wanted
            ]
            answer, tail = split(
                await it.http.post("/v2/models/two/infer", json=tagged(tag, **more))
            )
            assert answer["id"] == f"r{tag}"
            assert [o["name"] for o in answer["outputs"]] == wanted
            expected = [tag if name == "same" else tag * scale for name in wanted]
            if as_bytes:
                assert np.frombuffer(tail, "i8").tolist() == expected
            else:
                assert [o["data"] for o in answer["outputs"]] == [[e] for e in expected]

        it.pool.hold = True
        calls = gathered([ask(tag) for tag in range(60)])
        it.pool.release()
        await calls
        assert max(Two.batches) > 1
        assert_all_free(it, "two")


@on_loop
async def test_every_caller_gets_its_own_rows() -> None:
    """C08: 300 callers of one to five rows: so many rows and these values."""
    async with edge(Affine, slots=1024, max_batch=64) as it:

        async def ask(i: int) -> None:
            rows = [i * 10 + k for k in range(1 + i % 5)]
            answer, _ = split(await it.http.post(INFER, json=affine(*rows)))
            assert answer["outputs"][0]["shape"] == [len(rows), 4]
            assert answer["outputs"][0]["data"] == affine_answer(*rows)

        await gathered([ask(i) for i in range(300)])
        assert_all_free(it, "affine")


# -- BYTES --------------------------------------------------------------------------------


def prefixed(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(e)) + e for e in elements)


def texts(*elements: bytes, as_bytes: bool) -> tuple[dict[str, str], bytes]:
    """A request of texts, binary out."""
    shape = [len(elements)]
    tensor: dict[str, Any] = {"name": "text", "datatype": "BYTES", "shape": shape}
    tail = b""
    if as_bytes:
        tail = prefixed(*elements)
        tensor["parameters"] = {"binary_data_size": len(tail)}
    else:
        tensor["data"] = [e.decode() for e in elements]
    head = json.dumps({"inputs": [tensor]}).encode()
    return {"Inference-Header-Content-Length": str(len(head))}, head + tail


def with_binary_output(headers: dict[str, str], body: bytes) -> tuple[dict[str, str], bytes]:
    at = int(headers["Inference-Header-Content-Length"])
    head = json.loads(body[:at])
    head["parameters"] = {"binary_data_output": True}
    text = json.dumps(head).encode()
    return {"Inference-Header-Content-Length": str(len(text))}, text + body[at:]


TEXTS = (b"", b"a", "\N{SNOWMAN}\N{GRINNING FACE}".encode(), b"x" * (1 << 20))


@pytest.mark.parametrize("bytes_in", [False, True])
@pytest.mark.parametrize("bytes_out", [False, True])
@on_loop
async def test_texts_come_back_as_they_went(bytes_in: bool, bytes_out: bool) -> None:
    """C52: JSON and binary each way; empty, emoji, a megabyte."""
    async with edge(Echo, slots=8) as it:
        headers, body = texts(*TEXTS, as_bytes=bytes_in)
        if bytes_out:
            headers, body = with_binary_output(headers, body)
        answer, tail = split(
            await it.http.post("/v2/models/echo/infer", headers=headers, content=body)
        )
        assert answer["outputs"][0]["shape"] == [4]
        if bytes_out:
            assert tail == prefixed(*TEXTS)
        else:
            assert answer["outputs"][0]["data"] == [t.decode() for t in TEXTS]


@on_loop
async def test_bytes_that_are_no_text() -> None:
    """C52: exact in binary; in JSON 400 with advice, no replacement characters."""
    async with edge(Echo, slots=8) as it:
        path = "/v2/models/echo/infer"
        headers, body = texts(b"\x00\xff\xfe", b"ok", as_bytes=True)
        answer = await it.http.post(path, headers=headers, content=body)
        assert answer.status_code == 400
        assert "binary_data" in answer.json()["error"]
        headers, body = with_binary_output(headers, body)
        _, tail = split(await it.http.post(path, headers=headers, content=body))
        assert tail == prefixed(b"\x00\xff\xfe", b"ok")
        assert_all_free(it, "echo")


@pytest.mark.parametrize(
    "tail", [struct.pack("<I", 99) + b"ab", b"\x05\x00", prefixed(b"a") + b"x"]
)
@on_loop
async def test_malformed_length_prefix(tail: bytes) -> None:
    """C52: 400 for one that is too long, cut, or followed by more."""
    async with edge(Echo, slots=8) as it:
        tensor = {
            "name": "text", "datatype": "BYTES", "shape": [1],
            "parameters": {"binary_data_size": len(tail)},
        }  # fmt: skip
        head = json.dumps({"inputs": [tensor]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        answer = await it.http.post("/v2/models/echo/infer", headers=headers, content=head + tail)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


# -- numbers that JSON does not have --------------------------------------------------------


@on_loop
async def test_nan_and_infinity() -> None:
    """C53: null in JSON, every bit in binary, neighbours untouched, a NaN that comes is 400."""
    async with edge(Picky) as it:
        x = np.array([[np.nan, np.inf], [-0.0, 5e-324]])
        path = "/v2/models/picky/infer"
        headers, body = binary({}, ("x", "FP64", x))
        other = {"inputs": [numbers("x", np.array([[4.0, 9.0]]), "FP64")]}
        mine, theirs = await gathered(
            [it.http.post(path, headers=headers, content=body), it.http.post(path, json=other)]
        )
        data = split(mine)[0]["outputs"][0]["data"]
        assert data[:2] == [None, None]
        assert str(data[2]) == "-0.0"
        assert split(theirs)[0]["outputs"][0]["data"] == [2.0, 3.0]
        headers, body = binary({"parameters": {"binary_data_output": True}}, ("x", "FP64", x))
        _, tail = split(await it.http.post(path, headers=headers, content=body))
        assert tail == np.sqrt(x).tobytes()
        answer = await it.http.post(
            path,
            content=b'{"inputs":[{"name":"x","datatype":"FP64","shape":[1,2],"data":[NaN,1]}]}',
        )
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


# -- large bodies -----------------------------------------------------------------------------


@pytest.mark.parametrize("faulty", [False, True])
@on_loop
async def test_work_in_the_background_beats_before_and_after(faulty: bool) -> None:
    """The loop may not have its turn between two of them."""
    seen: list[str] = []
    background = BackgroundThread(lambda: seen.append("beat"))

    def work(value: int) -> int:
        seen.append("work")
        return 60 // value

    both = [background.run(1, work, 0 if faulty else 6), background.run(1, work, 5)]
    first, second = await asyncio.gather(*both, return_exceptions=True)
    assert isinstance(first, ZeroDivisionError) if faulty else first == 10
    assert second == 12
    assert seen == ["beat", "work", "beat"] * 2
    background.close()


@on_loop
async def test_large_json_goes_to_the_background_and_comes_back_right() -> None:
    async with edge(Affine, slots=16384, max_batch=4096) as it:
        rows = list(range(14000))
        endpoint = it.view.endpoints.find("affine")
        body = json.dumps(affine(*rows)).encode()
        assert len(body) > 300_000
        went: list[str] = []
        begin = it.view.background.run

        def noted(flow: int, work: Any, *arguments: Any, **more: Any) -> Any:
            went.append(work.__name__)
            return begin(flow, work, *arguments, **more)

        it.view.background.run = noted  # type: ignore[method-assign]
        answer, _ = split(await it.http.post(INFER, content=body))
        assert went == ["parse_long", "encode"]
        assert answer["outputs"][0]["data"] == affine_answer(*rows)
        assert endpoint.lane_client.allocator.claimed == 0


@on_loop
async def test_large_binary_stays_on_the_loop() -> None:
    async with edge(Wide, slots=8, server={"max_body_mib": 16}) as it:
        it.view.background.close()
        x = np.random.default_rng(7).integers(0, 256, (4, 1 << 20)).astype("u1")
        headers, body = binary({"parameters": {"binary_data_output": True}}, ("x", "UINT8", x))
        request = it.http.build_request(
            "POST", "/v2/models/wide/infer", headers=headers, content=body
        )
        del request.headers["accept-encoding"]
        _, tail = split(await it.http.send(request))
        assert tail == x.tobytes()


def test_strict_reader_is_strict() -> None:
    with pytest.raises(ValueError, match="not JSON"):
        strict(b"[NaN]")
