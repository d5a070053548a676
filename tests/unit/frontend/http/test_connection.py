"""Connections byte by byte: framing, refusals with a body under way, malformed requests."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import pytest

from batchpool.frontend.fast.protocol import FastProtocol
from batchpool.frontend.http.connection_limits import ConnectionLimits
from batchpool.frontend.service import body_limits as size_limits
from tests.unit.frontend.calls import affine, affine_answer, binary
from tests.unit.frontend.frontend_double import calling, chunk, edge, request, serving
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine, Wide

INFER = "/v2/models/affine/infer"
GOOD = json.dumps(affine(3)).encode()
MIB = 1 << 20


def head(path: str, *lines: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: pool", *lines, "", ""]).encode()


@on_loop
async def test_keep_alive_and_pipelining() -> None:
    async with edge(Affine) as it, serving(it) as site, calling(site) as caller:
        for i in range(3):
            await caller.send(request(INFER, json.dumps(affine(i)).encode()))
            found = await caller.answer()
            assert found.status == 200
            assert found.object["outputs"][0]["data"] == affine_answer(i)
        await caller.send(
            b"".join(
                [
                    request(INFER, json.dumps(affine(7)).encode()),
                    request("/nowhere", b"some body"),
                    request(INFER, json.dumps(affine(8)).encode()),
                ]
            )
        )
        assert (await caller.answer()).object["outputs"][0]["data"] == affine_answer(7)
        assert (await caller.answer()).refused == (404, "not_found")
        assert (await caller.answer()).object["outputs"][0]["data"] == affine_answer(8)
        assert site.connections == 1


@on_loop
async def test_head_and_wrong_verbs_keep_the_connection_in_step() -> None:
    async with edge(Affine) as it, serving(it) as site, calling(site) as caller:
        await caller.send(request("/v2", method="HEAD"))
        answer = await caller.answer(has_body=False)
        assert answer.status == 200
        assert int(answer.headers["content-length"]) > 0
        await caller.send(request(INFER, method="HEAD"))
        assert (await caller.answer(has_body=False)).status == 405
        await caller.send(request(INFER, b"a body", method="PUT"))
        answer = await caller.answer()
        assert answer.refused == (405, "method_not_allowed")
        assert answer.headers["allow"] == "post"  # the caller lowers everything
        await caller.send(request(INFER, GOOD))
        assert (await caller.answer()).status == 200


@pytest.mark.parametrize("size", [1, 7, 1000])
@on_loop
async def test_chunked_in_pieces_of_any_size(size: int) -> None:
    async with edge(Affine) as it, serving(it) as site, calling(site) as caller:
        await caller.send(head(INFER, "Transfer-Encoding: chunked"))
        for at in range(0, len(GOOD), size):
            await caller.send(chunk(GOOD[at : at + size]))
        await caller.send(chunk(b""))
        assert (await caller.answer()).object["outputs"][0]["data"] == affine_answer(3)


@on_loop
async def test_large_binary_body_and_answer() -> None:
    limits = {"max_body_mib": 16}
    async with edge(Wide, slots=8, server=limits) as it, serving(it) as site:
        x = np.random.default_rng(7).integers(0, 256, (5, MIB)).astype("u1")
        headers, body = binary({"parameters": {"binary_data_output": True}}, ("x", "UINT8", x))
        async with calling(site) as caller:
            await caller.send(request("/v2/models/wide/infer", body, headers=headers))
            answer = await caller.answer()
        assert answer.status == 200
        at = int(answer.headers["inference-header-content-length"])
        assert answer.body[at:] == x.tobytes()


@on_loop
async def test_http_1_0() -> None:
    async with edge(Affine) as it, serving(it) as site, calling(site) as caller:
        await caller.send(request(INFER, GOOD).replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert (await caller.answer()).status == 200
        assert await caller.ended() == b""


# -- refusals while the body is still on its way -----------------------------------------


@on_loop
async def test_announced_size_is_refused_at_once_and_the_connection_lives_on() -> None:
    """C06: the answer comes before the body, and the next request is served."""
    async with (
        edge(Affine, server={"max_body_mib": 1}) as it,
        serving(it) as site,
        calling(site) as caller,
    ):
        await caller.send(head(INFER, f"Content-Length: {3 * MIB}"))
        assert (await caller.answer()).refused == (413, "too_large")
        for _ in range(3):
            await caller.send(b" " * MIB)
        await caller.send(request(INFER, GOOD))
        assert (await caller.answer()).status == 200


@on_loop
async def test_chunked_size_is_refused_as_soon_as_it_is_passed() -> None:
    """C06: the answer comes before the body's end."""
    async with (
        edge(Affine, server={"max_body_mib": 1}) as it,
        serving(it) as site,
        calling(site) as caller,
    ):
        await caller.send(head(INFER, "Transfer-Encoding: chunked"))
        for _ in range(17):
            await caller.send(chunk(b" " * (MIB // 16)))
        assert (await caller.answer()).refused == (413, "too_large")
        await caller.send(chunk(b" " * MIB) + chunk(b""))
        await caller.send(request(INFER, GOOD))
        assert (await caller.answer()).status == 200


@pytest.mark.parametrize("path", [INFER, "/nowhere", "/v2"])
@on_loop
async def test_a_caller_that_closes_after_its_answer_gets_to_read_it(path: str) -> None:
    # Were the connection closed with the body unread, the kernel would reset it and the
    # answer would be lost.
    async with (
        edge(Affine, server={"max_body_mib": 1}) as it,
        serving(it) as site,
        calling(site) as caller,
    ):
        await caller.send(head(path, f"Content-Length: {8 * MIB}", "Connection: close"))
        for _ in range(8):
            await caller.send(b" " * MIB)
        assert (await caller.answer()).refused[0] in (404, 405, 413)
        assert await caller.ended() == b""


@on_loop
async def test_discarding_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_limits, "_LEAST_DISCARD_BYTES", MIB)
    async with (
        edge(Affine, server={"max_body_mib": 1}) as it,
        serving(it) as site,
        calling(site) as caller,
    ):
        await caller.send(head("/nowhere", f"Content-Length: {1 << 40}"))
        assert (await caller.answer()).refused == (404, "not_found")
        with pytest.raises(ConnectionError):
            for _ in range(1000):
                await caller.send(b" " * MIB)


@on_loop
async def test_expect_100_continue() -> None:
    async with (
        edge(Affine, server={"max_body_mib": 1}) as it,
        serving(it) as site,
        calling(site) as caller,
    ):
        await caller.send(head(INFER, f"Content-Length: {len(GOOD)}", "Expect: 100-continue"))
        assert await caller.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await caller.send(GOOD)
        assert (await caller.answer()).status == 200
        await caller.send(head(INFER, f"Content-Length: {9 * MIB}", "Expect: 100-continue"))
        answer = await caller.answer()
        assert answer.refused == (413, "too_large")
        assert answer.headers["connection"] == "close"
        assert await caller.ended() == b""


# -- what is no request ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /v2 HTTP/1.1\r\nno colon here\r\n\r\n",
        head("pool:443", method="CONNECT"),
        b"GET /v2/models/\xc3\xa9 HTTP/1.1\r\nHost: pool\r\n\r\n",
        head(INFER, "Content-Length: ten"),
        head(INFER, "Content-Length: 3", "Transfer-Encoding: chunked") + b"abc",
        head(INFER, "Transfer-Encoding: chunked") + b"zz\r\n",
    ],
)
@on_loop
async def test_malformed_requests_are_told_so_in_json(raw: bytes) -> None:
    async with edge(Affine) as it, serving(it) as site:
        async with calling(site) as caller:
            await caller.send(raw)
            answer = await caller.answer()
            assert answer.refused == (400, "invalid_request")
            assert answer.headers["connection"] == "close"
            assert await caller.ended() == b""
        async with calling(site) as caller:
            await caller.send(request(INFER, GOOD))
            assert (await caller.answer()).status == 200


@on_loop
async def test_head_without_end() -> None:
    limits = ConnectionLimits(head_bytes=4096)
    async with edge(Affine) as it, serving(it, limits) as site, calling(site) as caller:
        await caller.send(b"GET /v2 HTTP/1.1\r\nHost: pool\r\nX-Long: ")
        with pytest.raises(ConnectionError):
            for _ in range(100_000):
                await caller.send(b"a" * 1024)


@pytest.mark.parametrize("ends", [True, False])
@on_loop
async def test_of_a_head_with_far_too_many_fields_only_the_first_part_is_parsed(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = []
    on_header = FastProtocol.on_header

    def counted(self: FastProtocol, name: bytes, value: bytes) -> None:
        parsed.append(name)
        on_header(self, name, value)

    monkeypatch.setattr(FastProtocol, "on_header", counted)
    async with edge(Affine) as it, serving(it) as site, calling(site) as caller:
        sent = head("/v2", *["X: a"] * 9000, method="GET")
        await caller.send(sent if ends else sent[:-2])
        assert (await caller.answer()).refused == (400, "invalid_request")
        assert await caller.ended() == b""
    assert 256 < len(parsed) <= 4096 / len("X: a\r\n")


@on_loop
async def test_a_head_of_many_parts_is_as_good_as_a_short_one() -> None:
    async with edge(Affine) as it, serving(it) as site, calling(site) as caller:
        for size in (4000, 4096, 4097, 20_000, 60_000):
            await caller.send(request(INFER, GOOD, headers={"X": "a" * size}) * 2)
            assert [(await caller.answer()).status for _ in range(2)] == [200, 200]


@on_loop
async def test_too_many_fields_and_trailers() -> None:
    limits = ConnectionLimits(fields=20)
    async with edge(Affine) as it, serving(it, limits) as site:
        fields = [f"X-{i}: {i}" for i in range(30)]
        async with calling(site) as caller:
            await caller.send(head("/v2", *fields, method="GET"))
            assert (await caller.answer()).refused == (400, "invalid_request")
            assert await caller.ended() == b""
        async with calling(site) as caller:
            await caller.send(head(INFER, "Transfer-Encoding: chunked") + chunk(b"{")[:-2])
            await caller.send(b"\r\n0\r\n" + "\r\n".join(fields).encode() + b"\r\n")
            assert (await caller.answer()).refused == (400, "invalid_request")
            assert await caller.ended() == b""


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "asgi"])
@on_loop
async def test_no_field_beyond_the_limit_is_parsed(fast: bool) -> None:
    async with edge(Affine) as it, serving(it, fast=fast) as site:
        protocol: Any = site.server._protocol
        on_header = protocol.on_header
        parsed: list[bytes] = []

        def counted(self: Any, name: bytes, value: bytes) -> None:
            parsed.append(name)
            on_header(self, name, value)

        protocol.on_header = counted
        async with calling(site) as caller:
            await caller.send(head("/v2", *["a: b"] * 5000, method="GET"))
            answer = await caller.answer()
            assert answer.refused == (400, "invalid_request")
            assert "256 fields" in answer.object["error"]
            assert await caller.ended() == b""
        assert len(parsed) == 257


@on_loop
async def test_an_upgrade_on_offer_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    async with edge(Affine) as it, serving(it) as site, calling(site) as caller:
        offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AA"}
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                await caller.send(request(INFER, GOOD, headers=offer))
                assert (await caller.answer()).status == 200
        assert [found for found in caplog.records if found.levelno >= logging.WARNING] == []


# -- what comes around a chunked body -----------------------------------------------------


@on_loop
async def test_an_endless_trailer_or_chunk_extension_is_refused() -> None:
    for start in (b"0\r\nX: ", b"1;"):
        async with edge(Affine) as it, serving(it) as site, calling(site) as caller:
            await caller.send(head(INFER, "Transfer-Encoding: chunked") + start)
            await until(lambda site=site: site.under_way == 1, "its headers are complete")
            for _ in range(33):  # 66 KiB; the limit is 64
                await caller.send(b"a" * 2048)
            answer = await caller.answer()
            assert answer.refused == (400, "invalid_request")


@on_loop
async def test_a_body_in_chunks_of_one_byte_is_no_such_thing() -> None:
    """C06: framing that is many times the body is refused as too large."""
    x = np.repeat(np.arange(4000, dtype=np.float32), 4)
    body = json.dumps(
        {"inputs": [{"name": "x", "shape": [4000, 4], "datatype": "FP32", "data": x.tolist()}]}
    ).encode()
    async with edge(Affine) as it, serving(it) as site, calling(site) as caller:
        await caller.send(head(INFER, "Transfer-Encoding: chunked"))
        for at in range(0, len(body), 4096):
            part = body[at : at + 4096]
            await caller.send(b"".join(b"1\r\n%c\r\n" % byte for byte in part))
        await caller.send(b"0\r\n\r\n")
        assert (await caller.answer()).refused == (413, "too_large")  # it was read to its end
