"""Prefer and Idempotency-Key."""

from __future__ import annotations

import pytest

from batchpool.core.errors import InvalidRequest
from batchpool.wire.preferences import AsyncPreference, async_preference, idempotency_key


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
        ([b'foo="a, wait=9, b", respond-async, wait=5'], 5),
        ([b'foo="a, respond-async"'], None),
        ([b'respond-async; foo="a;b, wait=9", wait=5'], 5),
        ([b'foo="a\\", wait=9", wait="5", respond-async'], 5),
        ([b'respond-async, wait="\\5"'], 5),
        ([b'respond-async, foo="no end, wait=5', b"wait=6"], 6),
        ([b'respond-async, foo="no end, wait=5\\'], 0),
        ([b',;,respond-async,, ;a , =1, wait=5;"'], 5),
        ([b'"' * 3 + b",respond-async"], None),
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


def test_long_fields_take_no_longer_than_their_length() -> None:
    """A quotation mark that looks for its end again and again would take minutes here."""
    for text in (b'"\\', b'"a', b'\\"', b'";', b'",'):
        assert async_preference([(b"prefer", text * 500_000 + b'", respond-async')]) in (
            None,
            AsyncPreference(0),
        )


def one_key(*values: bytes) -> str:
    fields = [(b"host", b"h"), *((b"idempotency-key", value) for value in values)]
    return idempotency_key(fields)


def test_a_key_of_visible_characters() -> None:
    assert one_key() == ""
    assert one_key(b'"8e03978e"') == '"8e03978e"'
    for wrong in (b"", b"a b", b"\xe4", b"x" * 256, b"a\tb"):
        with pytest.raises(InvalidRequest, match="Idempotency-Key"):
            one_key(wrong)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([b"a", b"b"], "came 2 times, as 'a' and 'b'; one was expected"),
        ([b"a", b"a"], "came 2 times, as 'a' and 'a'; one was expected"),
        ([b"a", b"\xe4", b"c"], "came 3 times, as 'a' and 'ä'; one was expected"),
    ],
)
def test_several_keys_are_refused_and_named(values: list[bytes], text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        one_key(*values)
    assert str(caught.value) == f"header Idempotency-Key {text}"
