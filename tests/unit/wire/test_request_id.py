"""The name of a request: what of its headers counts, and what a made one is like."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.wire.request_id import made_id, request_id

MADE = re.compile(rb"[0-9a-f]{16}")
TRACE = b"4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = b"00-" + TRACE + b"-00f067aa0ba902b7-01"


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=128))
def test_visible_ascii_is_taken_as_it_is(name: str) -> None:
    assert request_id({b"x-request-id": name.encode()}) == name.encode()


@given(st.binary(max_size=200))
def test_anything_else_is_replaced(value: bytes) -> None:
    name = request_id({b"x-request-id": value})
    if value and len(value) <= 128 and all(0x21 <= byte <= 0x7E for byte in value):
        assert name == value
    else:
        assert MADE.fullmatch(name)


@pytest.mark.parametrize(
    "value", [b"", b"two words", b"a\x1b[2J", b"a\r\nx: y", b"\xff", b"a" * 129]
)
def test_what_could_do_harm_is_replaced(value: bytes) -> None:
    assert MADE.fullmatch(request_id({b"x-request-id": value}))


def test_without_headers_there_is_no_name() -> None:
    assert request_id({b"host": b"pool"}) == b""


def test_a_trace_names_the_request() -> None:
    assert request_id({b"traceparent": PARENT}) == TRACE
    assert request_id({b"traceparent": b"01" + PARENT[2:] + b"-of a later version"}) == TRACE


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"nonsense",
        TRACE,
        PARENT.upper(),
        b"ff" + PARENT[2:],
        b"00-" + b"0" * 32 + b"-00f067aa0ba902b7-01",
        b"00-" + TRACE + b"-0000000000000000-01",
        PARENT + b"-more",  # version 00 has no more
        PARENT + b"\n",
        b"01" + PARENT[2:] + b"more",
    ],
)
def test_what_is_no_trace_names_nothing(value: bytes) -> None:
    assert request_id({b"traceparent": value}) == b""


def test_the_request_id_goes_before_the_trace() -> None:
    assert request_id({b"x-request-id": b"mine", b"traceparent": PARENT}) == b"mine"
    # one that cannot be used is better replaced by the trace's, which others know too
    assert request_id({b"x-request-id": b"not mine", b"traceparent": PARENT}) == TRACE


def test_made_names_differ() -> None:
    names = {made_id() for _ in range(1000)}
    assert len(names) == 1000
    assert all(MADE.fullmatch(name) for name in names)
