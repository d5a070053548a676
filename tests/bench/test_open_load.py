"""Checks of the open loop on itself: how late its requests left, where an answer ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.load.open_load import LATE_MS, RIGHT, Lateness, Load, Plan, lateness
from bench.load.open_sender import Account, content_length


@pytest.mark.parametrize(
    ("head", "length"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 12", 12),
        (b"HTTP/1.1 200 OK\r\nContent-Length:7\r\ndate: now", 7),
        (b"HTTP/1.1 200 OK\r\ninference-header-content-length: 99\r\ncontent-length: 2147", 2147),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2147\r\nInference-Header-Content-Length: 99", 2147),
    ],
)
def test_the_length_of_an_answer(head: bytes, length: int) -> None:
    assert content_length(head) == length


def test_a_head_without_a_length() -> None:
    with pytest.raises(ValueError, match="without a Content-Length"):
        content_length(b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: 99")


def load(behind_ms: list[float]) -> Load:
    """Requests 10 ms apart, all answered right after 1 ms."""
    n = len(behind_ms)
    return Load(np.arange(n) / 100, np.ones(n), np.full(n, RIGHT), np.array(behind_ms))


def test_lateness_is_of_requests_not_of_answers() -> None:
    assert lateness(np.arange(101.0)) == Lateness(50.0, 99.0, 100.0)
    assert lateness(np.array([])) == Lateness(0.0, 0.0, 0.0)


def test_a_load_that_left_late_is_invalid() -> None:
    on_time = load([0.5] * 300)
    assert on_time.verdict() == "as intended"
    assert on_time.figures()["invalid"] == 0
    spike = load([0.5] * 100 + [LATE_MS + 1] * 100 + [0.5] * 100)
    assert spike.verdict().startswith("INVALID: requests left late, p50 0.5, p99 11.0, most 11.0")
    assert spike.figures()["invalid"] == 1
    assert spike.verdict(0.0, 1.0) == "as intended", "only the second in the middle was late"
    assert spike.figures(1.0, 2.0)["behind_p50_ms"] == LATE_MS + 1


def test_one_straggler_in_a_thousand_is_told_and_no_more() -> None:
    told = load([0.5] * 999 + [500.0]).figures()
    assert (told["behind_most_ms"], told["invalid"]) == (500.0, 0)


def test_what_never_left_is_late(tmp_path: Path) -> None:
    found = tmp_path / "found.npz"
    account = Account(Plan([(1000.0, 0.5)], 0, 1, 3, str(found), 1))
    assert len(account.due_ns) > 100
    account.behind_ns[0] = 1_000_000
    account.save(str(found))
    behind_ms = np.load(found)["behind"] / 1e6
    assert behind_ms[0] == 1.0
    assert lateness(behind_ms).is_invalid, "due at the machine's start, and still unsent"
