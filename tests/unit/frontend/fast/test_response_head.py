"""The bytes in front of a response's body on the fast road."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchpool.frontend.fast.request import FastPath
from batchpool.frontend.http.response import HttpResponse

EARLY = [(b"date", b"Sun, 29 Nov 2026 10:00:00 GMT")]
LATE = [(b"date", b"Sun, 29 Nov 2026 10:00:01 GMT")]


@pytest.fixture
def path() -> FastPath:
    view = SimpleNamespace(
        endpoints=SimpleNamespace(by_path={}),
        background=None,
        access=None,
        max_body_bytes=1,
        tasks=None,
    )
    return FastPath(cast(Any, view))


def test_each_second_has_its_date_and_each_status_its_line(path: FastPath) -> None:
    ok = b"HTTP/1.1 200 OK\r\ndate: Sun, 29 Nov 2026 10:00:00 GMT\r\n"
    assert path.head(200, EARLY) == ok
    assert path.head(404, EARLY) == ok.replace(b"200 OK", b"404 Not Found")
    assert path.head(200, LATE) == ok.replace(b":00 GMT", b":01 GMT")
    assert path.head(404, LATE).endswith(b":01 GMT\r\n")
    assert path.head(200, EARLY) == ok


@pytest.mark.parametrize(
    ("name", "keep_alive", "end"),
    [
        (b"", True, b"\r\n"),
        (b"job-7", True, b"x-request-id: job-7\r\n\r\n"),
        (b"", False, b"connection: close\r\n\r\n"),
        (b"job-7", False, b"x-request-id: job-7\r\nconnection: close\r\n\r\n"),
    ],
)
def test_an_id_and_the_end_of_the_connection_are_told(
    path: FastPath, name: bytes, keep_alive: bool, end: bytes
) -> None:
    response = HttpResponse(200, [(b"content-length", b"2")], b"{}")
    found = b"".join(path.pieces(response, EARLY, name, keep_alive))
    assert found == path.head(200, EARLY) + b"content-length: 2\r\n" + end
