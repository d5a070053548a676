"""Pieces of a body around ASGI's send: when they may be written, and their form."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from batchpool.frontend.http.body_writer import BodyWriter


class _Transport:
    def __init__(self) -> None:
        self.written = b""
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def write(self, piece: bytes) -> None:
        self.written += piece


def begun() -> Any:
    """A cycle whose chunked body has begun."""
    cycle: Any = RequestResponseCycle.__new__(RequestResponseCycle)
    cycle.transport, cycle.flow = _Transport(), SimpleNamespace(write_paused=False)
    cycle.chunked_encoding = cycle.response_started = True
    cycle.response_complete = cycle.disconnected = False
    return cycle


def writer_of(cycle: Any, counts: list[int] | None = None) -> BodyWriter:
    found = BodyWriter.of(cycle.send, ([] if counts is None else counts).append)
    assert found is not None
    return found


def test_a_piece_is_one_chunk_and_is_counted() -> None:
    cycle, counts = begun(), list[int]()
    writer = writer_of(cycle, counts)
    assert writer.is_open
    writer.write(b"x" * 18)
    assert cycle.transport.written == b"12\r\n" + b"x" * 18 + b"\r\n"
    assert counts == [18]


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("chunked_encoding", None),
        ("response_started", False),
        ("response_complete", True),
        ("disconnected", True),
        ("flow", SimpleNamespace(write_paused=True)),
    ],
)
def test_it_is_shut_while_the_body_has_not_begun_or_the_caller_takes_nothing(
    part: str, value: object
) -> None:
    cycle = begun()
    setattr(cycle, part, value)
    assert not writer_of(cycle).is_open


def test_it_is_shut_on_a_connection_that_closes() -> None:
    cycle = begun()
    cycle.transport.closing = True
    assert not writer_of(cycle).is_open


def test_another_send_has_none() -> None:
    async def send(message: Any) -> None: ...

    assert BodyWriter.of(send, [].append) is None
