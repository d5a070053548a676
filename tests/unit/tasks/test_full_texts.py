"""Texts of refusals: whose share is full, as its operator knows the caller."""

from __future__ import annotations

import pytest

from batchpool.tasks.full_texts import full_text
from batchpool.tasks.record import PutOutcome, StoreLimits

LIMITS = StoreLimits(open=4, bytes=2**30, result_ttl_ms=1, grace_ms=1, evict_on_read=True)


@pytest.mark.parametrize(
    ("origin", "whose"),
    [
        ("key ann", "the caller with the key ann"),
        ("10.0.0.1", "the caller at 10.0.0.1"),
        ("", "this caller"),
    ],
)
def test_a_share_that_is_full_is_somebodys(origin: str, whose: str) -> None:
    text = full_text(PutOutcome.BYTES_SHARE_FULL, LIMITS, origin)
    assert f"uncollected results of {whose} take their share of the 1024 MiB" in text
    assert "75% of what the others leave (tasks_caller_share)" in text
    assert whose in full_text(PutOutcome.SHARE_FULL, LIMITS, origin)
