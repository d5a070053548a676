"""The headers that every form shares."""

from __future__ import annotations

import pytest

from batchpool.core.errors import InvalidRequest
from batchpool.wire.request import (
    brief,
    header_length,
    header_priority,
    header_timeout_ns,
    sooner,
)


def test_the_header_length() -> None:
    assert header_length({}, 7) == 7
    assert header_length({b"inference-header-content-length": b"7"}, 7) == 7
    with pytest.raises(InvalidRequest, match="is '8'; a whole number from 0 to 7 was"):
        header_length({b"inference-header-content-length": b"8"}, 7)


def test_the_timeout() -> None:
    assert header_timeout_ns({}) is None
    for text, expected in (
        (b"0", None),
        (b"1", 1_000_000),
        (b"30000", 30_000_000_000),
        (b"9" * 5000, 2**63 - 1),
    ):
        assert header_timeout_ns({b"x-request-timeout-ms": text}) == expected
    for text in (b"-1", b"1.5", b"", b"1 ", b"abc", "²".encode("latin-1")):
        with pytest.raises(InvalidRequest, match="X-Request-Timeout-Ms"):
            header_timeout_ns({b"x-request-timeout-ms": text})


def test_the_priority() -> None:
    assert header_priority({}) == 0
    assert [header_priority({b"x-request-priority": b"%d" % p}) for p in (0, 1, 255)] == [0, 1, 255]
    for text in (b"256", b"-1", b"high", b"", b"9" * 5000):
        with pytest.raises(InvalidRequest, match="X-Request-Priority"):
            header_priority({b"x-request-priority": text})


def test_the_sooner_timeout() -> None:
    assert sooner(None, None) is None
    assert (sooner(3, None), sooner(None, 3), sooner(3, 4), sooner(4, 3)) == (3, 3, 3, 3)


def test_brief_is_quoted_and_short() -> None:
    assert brief("a") == "'a'"
    assert brief(5) == "5"
    for long in ("x" * 10_000, ["x"] * 10_000, 10**1000):
        assert len(brief(long)) <= 82
