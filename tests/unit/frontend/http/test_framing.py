"""Requests that two readers of the same bytes may frame differently: refused on both roads."""

from __future__ import annotations

import json

import pytest

from tests.unit.frontend.fast.test_protocol import INFER, ROW, lines, raw
from tests.unit.frontend.loops import on_loop
from tests.unit.frontend.models import Affine
from tests.unit.frontend.roads import Visit, same

POST = f"POST {INFER} HTTP/1.1"
RAW = "Inference-Header-Content-Length: 0"
CHUNKED = "Transfer-Encoding: chunked"
NEXT = b"GET /v2 HTTP/1.1\r\nHost: pool\r\n\r\n"

# name -> the bytes, and a part of the error's text.
REFUSED: dict[str, tuple[bytes, str]] = {
    "no Host": (lines(POST, RAW, "Content-Length: 16", body=ROW), "Host is absent"),
    "no Host, GET": (lines("GET /v2 HTTP/1.1"), "Host is absent"),
    "two Hosts": (
        lines(POST, "Host: a", "hOST: a", RAW, "Content-Length: 16", body=ROW),
        "Host came 2 times",
    ),
    "two Hosts in HTTP/1.0": (lines("GET /v2 HTTP/1.0", "Host: a", "Host: b"), "Host came 2 times"),
    "gzip and chunked": (
        lines(POST, "Host: a", "Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
        "transfer encoding 'gzip, chunked' is not known here; chunked was expected",
    ),
    "gzip and chunked in two lines": (
        lines(POST, "Host: a", "Transfer-Encoding: gzip", CHUNKED, body=b"0\r\n\r\n"),
        "transfer encoding 'gzip, chunked'",
    ),
    "gzip": (lines(POST, "Host: a", "Transfer-Encoding: gzip", body=ROW), "'gzip'"),
    "identity": (lines(POST, "Host: a", "Transfer-Encoding: identity", body=ROW), "'identity'"),
    "almost chunked": (lines(POST, "Host: a", "Transfer-Encoding: xchunked"), "'xchunked'"),
    "chunked, then gzip": (
        lines(POST, "Host: a", "Transfer-Encoding: chunked, gzip"),
        "Transfer-Encoding",
    ),
    "chunked in HTTP/1.0": (
        lines(f"POST {INFER} HTTP/1.0", "Host: a", CHUNKED, body=b"0\r\n\r\n"),
        "Transfer-Encoding came with HTTP/1.0",
    ),
    "length and chunked": (
        lines(POST, "Host: a", "Content-Length: 5", CHUNKED, body=b"0\r\n\r\n"),
        "can't be present",
    ),
    "chunked and length": (
        lines(POST, "Host: a", CHUNKED, "Content-Length: 5", body=b"0\r\n\r\n"),
        "can't be present",
    ),
    "equal lengths": (
        lines(POST, "Host: a", "Content-Length: 16", "Content-Length: 16", body=ROW),
        "Duplicate Content-Length",
    ),
    "a list of lengths": (lines(POST, "Host: a", "Content-Length: 16, 16", body=ROW), "Length"),
    "a signed length": (lines(POST, "Host: a", "Content-Length: +16", body=ROW), "Length"),
    "a negative length": (lines(POST, "Host: a", "Content-Length: -1", body=ROW), "Length"),
    "an empty length": (lines(POST, "Host: a", "Content-Length:", body=ROW), "Length"),
    "a length beyond 64 bits": (lines(POST, "Host: a", "Content-Length: 9" + "9" * 19), "Length"),
    "folded": (lines(POST, "Host: a", "X: a", " b", "Content-Length: 16", body=ROW), "whitespace"),
    "blank before the colon": (lines(POST, "Host: a", "Content-Length : 16", body=ROW), "field"),
    "blank before the first field": (lines(POST, " Host: a", "Content-Length: 16"), "pace"),
    "bare LF": (lines(POST, "Host: a").replace(b"Host: a\r\n", b"Host: a\n"), "CR"),
    "bare CR": (lines(POST, "Host: a\rX: b", "Content-Length: 16"), "LF"),
    "bare LF behind the head": (lines(POST, "Host: a")[:-2] + b"\n", "header field"),
    "NUL": (lines(POST, "Host: a\0"), "header value"),
    "control character": (lines(POST, "Host: a", "X: \x01"), "header value"),
    "no version": (lines("GET /v2"), "HTTP/0.9 is not spoken here; HTTP/1.1 was expected"),
    "another major version": (lines("GET /v2 HTTP/2.0", "Host: a"), "HTTP/2.0 is not spoken here"),
    "preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "no request of HTTP/1.1"),
    "chunk size in another form": (
        lines(POST, "Host: a", CHUNKED, body=b"0x1\r\na\r\n0\r\n\r\n"),
        "chunk size",
    ),
    "chunk longer than it says": (
        lines(POST, "Host: a", CHUNKED, body=b"1\r\nab\r\n0\r\n\r\n"),
        "chunk data",
    ),
    "chunk size ended by LF": (lines(POST, "Host: a", CHUNKED, body=b"1\na\r\n0\r\n\r\n"), "CR"),
    "length among trailers": (
        lines(POST, "Host: a", CHUNKED, body=b"0\r\nContent-Length: 3\r\n\r\n"),
        "can't be present",
    ),
    "two content encodings": (
        lines(
            POST, "Host: a", "Content-Encoding: gzip", "Content-Encoding: br", "Content-Length: 0"
        ),
        "content-encoding came 2 times",
    ),
    "two lengths of the JSON": (
        lines(POST, "Host: a", RAW, "Inference-Header-Content-Length: 9", "Content-Length: 16"),
        "inference-header-content-length came 2 times",
    ),
    "a tunnel": (lines("CONNECT pool:443 HTTP/1.1", "Host: a"), ""),
}


@pytest.mark.parametrize("size", [0, 1, 7], ids=["whole", "bytes", "sevens"])
@pytest.mark.parametrize("name", REFUSED)
@on_loop
async def test_what_may_be_framed_in_two_ways_is_400_and_ends_the_connection(
    name: str, size: int
) -> None:
    sent, text = REFUSED[name]
    smuggled = sent + NEXT

    async def scenario(it: Visit) -> None:
        it.feed([raw(ROW)])
        assert (await it.take()).startswith(b"HTTP/1.1 200 ")
        if size:
            connections = it.site.server.server_state.connections
            for at in range(0, len(smuggled), size):
                if not connections:
                    break
                (connection,) = connections
                connection.data_received(smuggled[at : at + size])
        else:
            it.feed([smuggled])
        answer = await it.take()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"\r\nconnection: close\r\n" in answer
        found = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert found["code"] == "invalid_request"
        assert text in found["error"]
        await it.take_end()
        assert it.found.answers[-1] == b"<end>", "nothing behind it is read as a request"

    await same(scenario, Affine)


ACCEPTED = {
    "empty Host": lines(POST, "Host:", RAW, "Content-Length: 16", body=ROW),
    "HTTP/1.0 without a Host": lines(f"POST {INFER} HTTP/1.0", RAW, "Content-Length: 16", body=ROW),
    "chunked, shouted": lines(
        POST, "Host: a", RAW, "Transfer-Encoding: CHUNKED", body=b"10\r\n" + ROW + b"\r\n0\r\n\r\n"
    ),
    "blanks around a length": lines(POST, "Host: a", RAW, "Content-Length:  16  ", body=ROW),
    "chunk extension": lines(
        POST, "Host: a", RAW, CHUNKED, body=b"10;a=b\r\n" + ROW + b"\r\n0\r\n\r\n"
    ),
    "empty lines before it": b"\r\n\r\n" + raw(ROW),
}


@pytest.mark.parametrize("name", ACCEPTED)
@on_loop
async def test_what_is_unusual_but_has_one_meaning_is_taken(name: str) -> None:
    async def scenario(it: Visit) -> None:
        await it.send(ACCEPTED[name])
        assert (await it.take()).startswith(b"HTTP/1.1 200 ")

    await same(scenario, Affine)


@pytest.mark.parametrize("cut", [False, True])
@on_loop
async def test_trailers_are_no_headers(cut: bool) -> None:
    """They come after the head was acted upon, or before, as the bytes happen to be cut."""
    head = lines(POST, "Host: a", RAW, CHUNKED)
    rest = b"10\r\n" + ROW + b"\r\n0\r\nContent-Type: text/plain\r\nContent-Encoding: br\r\n\r\n"

    async def scenario(it: Visit) -> None:
        it.feed([head, rest] if cut else [head + rest])
        assert (await it.take()).startswith(b"HTTP/1.1 200 ")

    await same(scenario, Affine)
