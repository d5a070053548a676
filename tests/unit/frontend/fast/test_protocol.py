"""The fast road answers as the ASGI road does: byte for byte, the date excepted."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest

from tests.unit.frontend.calls import affine, binary, numbers, packed
from tests.unit.frontend.frontend_double import chunk, request
from tests.unit.frontend.loops import on_loop
from tests.unit.frontend.models import Affine, Echo, Picky, Two, Wide
from tests.unit.frontend.roads import Visit, same

MIB = 1 << 20
INFER = "/v2/models/affine/infer"
ECHO = "/v2/models/echo/infer"
WIDE = "/v2/models/wide/infer"
GOOD = json.dumps(affine(3)).encode()
RAW = {"Inference-Header-Content-Length": "0"}
ROW = np.arange(4, dtype="f4").tobytes()
MSGPACK = {"Content-Type": "application/msgpack"}
ALL_BINARY = {"parameters": {"binary_data_output": True}}


def infer(content: Any, path: str = INFER, **headers: str) -> bytes:
    fields = {name.replace("_", "-"): text for name, text in headers.items()}
    return request(path, json.dumps(content).encode(), headers=fields)


def raw(body: bytes, path: str = INFER, **headers: str) -> bytes:
    fields = {name.replace("_", "-"): text for name, text in headers.items()}
    return request(path, body, headers={**RAW, **fields})


def in_msgpack(content: Any, path: str = INFER) -> bytes:
    return request(path, packed(content), headers=MSGPACK)


def in_binary(head: dict[str, Any], *tensors: Any, path: str = INFER, **fields: str) -> bytes:
    headers, body = binary(head, *tensors)
    return request(path, body, headers={**headers, **fields})


def lines(*text: str, body: bytes = b"") -> bytes:
    return "\r\n".join([*text, "", ""]).encode() + body


X = np.arange(12, dtype="f4").reshape(3, 4)
TENSOR = {"dtype": "FP32", "shape": [3, 4], "data": X.tobytes()}
TWO_TAG = ("tag", "INT64", np.array([[7], [8]]))

# name -> the request's bytes. FAST: the fast road takes it. SLOW: it goes on to ASGI.
FAST: dict[str, bytes] = {
    "json": infer(affine(1, 2.5, id="one")),
    "json, version": infer(affine(1), "/v2/models/affine/versions/1/infer"),
    "json, binary answer": infer(affine(1, **ALL_BINARY)),
    "raw": raw(ROW),
    "raw, three rows": raw(X.tobytes()),
    "raw, text": raw("päper".encode(), ECHO),
    "binary": in_binary({"id": "b"}, ("x", "FP32", X)),
    "binary both ways": in_binary(ALL_BINARY, ("x", "FP32", X)),
    "binary, one output": in_binary(
        {"outputs": [{"name": "scaled"}], "parameters": {"scale": 3}},
        TWO_TAG,
        path="/v2/models/two/infer",
    ),
    "msgpack": in_msgpack({"id": "m", "inputs": {"x": TENSOR}}),
    "msgpack, outputs": in_msgpack({"inputs": {"x": TENSOR}, "outputs": ["y"]}),
    "a megabyte": raw(bytes(MIB), WIDE),
    "client id and priority": raw(ROW, X_Client_Id="alice", X_Request_Priority="3"),
    "generous timeout": raw(ROW, X_Request_Timeout_Ms="60000"),
    "field twice, the last counts": raw(ROW).replace(
        b"\r\n\r\n", b"\r\nX-Request-Priority: bad\r\nx-request-priority: 1\r\n\r\n", 1
    ),
    "shouted field": raw(ROW).replace(b"Inference-Header", b"INFERENCE-HEADER"),
    "type with charset": infer(affine(1), Content_Type="application/json; charset=utf-8"),
    "small answer, gzip accepted": raw(ROW, Accept_Encoding="gzip"),
    "large answer, gzip accepted": raw(bytes(MIB), WIDE, Accept_Encoding="gzip"),
    "answer of many values": in_binary({}, ("x", "FP32", np.ones((5000, 4), "f4"))),
    "empty": raw(b""),
    "no length": lines(f"POST {INFER} HTTP/1.1", "Host: pool"),
    "half a row": raw(ROW[:7]),
    "no JSON": request(INFER, b"{"),
    "wrong name": infer({"inputs": [numbers("z", X, "FP32")]}),
    "wrong datatype": infer({"inputs": [numbers("x", X, "FP64")]}),
    "wrong shape": infer({"inputs": [numbers("x", X[:, :2], "FP32")]}),
    "undeclared parameter": infer(affine(1, parameters={"no": 1})),
    "wrong binary size": in_binary({}, ("x", "FP32", X)).replace(b": 48}", b": 44}", 1),
    "header length beyond the body": request(
        INFER, GOOD, headers={"Inference-Header-Content-Length": "9999"}
    ),
    "no msgpack": request(INFER, b"\xc1", headers=MSGPACK),
    "bad priority": raw(ROW, X_Request_Priority="first"),
    "bad timeout": raw(ROW, X_Request_Timeout_Ms="-1"),
    "unknown type": raw(ROW, Content_Type="text/plain"),
    "announced too large": raw(bytes(3 * MIB), WIDE),
    "more rows than slots": raw(ROW * 99),
    "bytes that JSON cannot carry": in_binary(
        {"outputs": [{"name": "text_out"}]},
        ("text", "BYTES", np.frombuffer(b"\x01\x00\x00\x00\xff", np.uint8)),
        path=ECHO,
    ).replace(b'"shape": [5]', b'"shape": [1]'),
    "model error": infer(
        {"inputs": [numbers("x", np.array([[-1.0, 1]]), "FP64")]}, "/v2/models/picky/infer"
    ),
    "NaN and infinity": infer(
        {"inputs": [numbers("x", np.array([[1e308, 4]]), "FP64")]}, "/v2/models/picky/infer"
    ),
    "connection: keep-alive": raw(ROW, Connection="keep-alive"),
}  # fmt: skip

SLOW: dict[str, bytes] = {
    "unknown model": infer(affine(1), "/v2/models/no/infer"),
    "unknown version": infer(affine(1), "/v2/models/affine/versions/2/infer"),
    "unknown path": infer(affine(1), "/v2/models/affine/infers"),
    "slash behind": infer(affine(1), INFER + "/"),
    "query": infer(affine(1), INFER + "?a=b"),
    "quoted path": infer(affine(1), INFER.replace("affine", "aff%69ne")),
    "whole URL": infer(affine(1), "http://pool" + INFER),
    "GET": request(INFER, method="GET"),
    "PUT": request(INFER, GOOD, method="PUT"),
    "OPTIONS": request(INFER, method="OPTIONS"),
    "metadata": request("/v2/models/affine", method="GET"),
    "gzip": request(INFER, gzip.compress(GOOD), headers={"Content-Encoding": "gzip"}),
    "no gzip": request(INFER, GOOD, headers={"Content-Encoding": "gzip"}),
    "unknown encoding": request(INFER, GOOD, headers={"Content-Encoding": "br"}),
    "chunked": lines(
        f"POST {INFER} HTTP/1.1",
        "Host: pool",
        "Transfer-Encoding: chunked",
        body=chunk(GOOD) + chunk(b""),
    ),
    "element too long": infer(
        {"inputs": [numbers("text", np.array(["a" * (MIB + 1)]), "BYTES")]}, ECHO
    ),
    "preference": raw(ROW, Prefer="return=minimal"),
    "long JSON": infer(affine(*range(8000))),
    "long JSON, wrong": request(INFER, b"[" * 300_000),
}


# Refused, but not for what they say: at the claim, by the model, when the answer is written.
RIGHT_SO_FAR = {"more rows than slots", "model error", "bytes that JSON cannot carry"}


def pool_for(sent: bytes) -> tuple[tuple[type[Any], ...], int]:
    """The models a request needs, and slots: few where a row is a megabyte."""
    for path, model in ((WIDE, Wide), (ECHO, Echo)):
        if path.encode() in sent:
            return (model,), 8
    return (Affine, Two, Picky), 64 if len(sent) < 50_000 else 16384


@pytest.mark.parametrize("name", [*FAST, *SLOW])
@on_loop
async def test_every_request_is_answered_alike(name: str) -> None:
    sent = {**FAST, **SLOW}[name]

    async def scenario(it: Visit) -> None:
        for _ in range(3):  # from the second time on its head is known
            it.feed([sent])
            await it.take()
        await it.send(request("/v2", method="GET"))  # the connection is in step
        assert b'"batchpool"' in await it.take()
        assert all(
            lane_client.allocator.claimed == 0
            for lane_client in it.of.pool.session.lane_set.values()
        )

    models, slots = pool_for(sent)
    found = await same(scenario, *models, slots=slots, max_batch=4096, server={"max_body_mib": 2})
    right = found.answers[0].startswith(b"HTTP/1.1 200 ") or name in RIGHT_SO_FAR
    assert found.fast == (3 if name in FAST else 0)
    assert found.known == (2 if name in FAST and right else 0)


# -- framing -------------------------------------------------------------------------------

SHORT = raw(ROW)


@on_loop
async def test_a_request_cut_in_two_anywhere() -> None:
    async def scenario(it: Visit) -> None:
        for at in range(1, len(SHORT)):
            it.feed([SHORT[:at], SHORT[at:]])
            await it.take()

    assert (await same(scenario, Affine)).fast == len(SHORT) - 1


@pytest.mark.parametrize("name", ["json", "binary both ways", "msgpack", "half a row", "chunked"])
@pytest.mark.parametrize("size", [1, 7])
@on_loop
async def test_a_request_in_small_pieces(name: str, size: int) -> None:
    sent = {**FAST, **SLOW}[name]

    async def scenario(it: Visit) -> None:
        for _ in range(2):
            it.feed(sent[at : at + size] for at in range(0, len(sent), size))
            await it.take()

    await same(scenario, Affine)


@pytest.mark.parametrize("n", range(1, 21))
@on_loop
async def test_pipelined_requests_of_both_roads_keep_their_order(n: int) -> None:
    kinds = [
        lambda i: infer(affine(i, id=f"{i}")),
        lambda i: in_msgpack({"id": f"{i}", "inputs": {"x": TENSOR}}),
        lambda i: infer(affine(i, id=f"{i}"), INFER + "?slow"),
        lambda i: request(f"/{i}", b"dropped"),
        lambda i: raw(ROW[:i]),
        lambda i: request("/v2", method="GET"),
    ]
    order = np.random.default_rng(n).integers(0, len(kinds), n)
    sent = b"".join(kinds[kind](i) for i, kind in enumerate(order))

    async def scenario(it: Visit) -> None:
        await it.send(sent)
        for i, kind in enumerate(order):
            answer = await it.take()
            if kind < 3:
                assert b"%d" % i in answer
        await it.send(sent)  # and once more, now that all is answered
        for _ in order:
            await it.take()

    await same(scenario, Affine)


@pytest.mark.parametrize("fields", ["", "Connection: close\r\n", "Connection: keep-alive\r\n"])
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("body", [ROW, ROW[:7], bytes(3 * MIB)])
@on_loop
async def test_who_ends_the_connection(fields: str, version: bytes, body: bytes) -> None:
    sent = raw(body).replace(b"HTTP/1.1", b"HTTP/" + version)
    sent = sent.replace(b"\r\n\r\n", b"\r\n" + fields.encode() + b"\r\n", 1)

    async def scenario(it: Visit) -> None:
        await it.send(sent)
        answer = await it.take()
        ends = version == b"1.0" or "close" in fields
        assert (b"\r\nconnection: close\r\n" in answer) == ends
        if ends:
            await it.take_end()
        else:
            await it.send(raw(ROW))
            await it.take()

    found = await same(scenario, Affine, server={"max_body_mib": 2})
    assert found.fast >= 1


@pytest.mark.parametrize("first", [ROW, ROW[:7]])
@on_loop
async def test_nothing_is_answered_behind_a_request_that_ends_the_connection(first: bytes) -> None:
    async def scenario(it: Visit) -> None:
        it.feed([raw(first, Connection="close") + raw(ROW) + request("/v2", method="GET")])
        await it.take()
        await it.take_end()
        assert it.of.pool.lane_client("affine").allocator.claimed == 0

    await same(scenario, Affine)


@on_loop
async def test_head_on_infer() -> None:
    async def scenario(it: Visit) -> None:
        await it.send(request(INFER, method="HEAD"))
        await it.take(has_body=False)
        await it.send(SHORT)
        await it.take()

    assert (await same(scenario, Affine)).fast == 1


@on_loop
async def test_expectations_and_offers() -> None:
    async def scenario(it: Visit) -> None:
        await it.send(raw(ROW, Expect="100-continue")[: -len(ROW)])
        await it.take()
        await it.send(ROW)
        await it.take()
        offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AA"}
        for _ in range(2):
            await it.send(request(INFER, ROW, headers={**RAW, **offer}))
            await it.take()
        await it.send(raw(bytes(3 * MIB), Expect="100-continue")[: -3 * MIB])
        await it.take()
        await it.take_end()

    assert (await same(scenario, Affine, server={"max_body_mib": 2})).fast == 2
