"""Prefer and Idempotency-Key."""

from __future__ import annotations

import pytest

from batchpool.core.errors import InvalidRequest
from batchpool.wire.preferences import async_preference, idempotency_key


@pytest.mark.parametrize(
    ("values", "wait_s"),
    [
        ([b"respond-async"], 0),
        ([b"Respond-Async, wait=5"], 5),
        ([b"wait = 5", b"respond-async"], 5),
        ([b'respond-async;foo="a", wait="7"; bar'], 7),
        ([b"respond-async, wait=5, wait=9"], 5),
        ([b"respond-async, wait=999999999999"], 60),
        ([b"respond-async, wait=-1"], 0),
        ([b"respond-async, wait=x"], 0),
        ([b"wait=5"], None),
        ([b"return=minimal"], None),
        ([b"respond-asynchronously"], None),
        ([], None),
    ],
)
def test_a_preference_in_any_spelling(values: list[bytes], wait_s: int | None) -> None:
    fields = [(b"host", b"h"), *((b"prefer", value) for value in values)]
    found = async_preference(fields)
    assert (None if found is None else found.wait_s) == wait_s


def test_a_key_of_visible_characters() -> None:
    assert idempotency_key({}) == ""
    assert idempotency_key({b"idempotency-key": b'"8e03978e"'}) == '"8e03978e"'
    for wrong in (b"", b"a b", b"\xe4", b"x" * 256, b"a\tb"):
        with pytest.raises(InvalidRequest, match="Idempotency-Key"):
            idempotency_key({b"idempotency-key": wrong})
