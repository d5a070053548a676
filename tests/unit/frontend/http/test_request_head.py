"""A head with other values than the one it was made from is as one that was parsed."""

from __future__ import annotations

import itertools

import pytest

from batchpool.frontend.http.caller import Caller
from batchpool.frontend.http.request_head import RequestHead
from batchpool.wire.forms import form_of
from batchpool.wire.request_id import request_id

PARSED = {
    b"host": b"bench",
    b"x-request-id": b"first",
    b"x-client-id": b"alice",
    b"traceparent": b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    b"accept-encoding": b"gzip",
}
VALUES = {
    b"x-request-id": [b"second", b"with spaces in it", b"-" * 128, b"a" * 128, b"a" * 129],
    b"x-client-id": [b"bob"],
    b"traceparent": [b"00-11111111111111111111111111111111-b7ad6b7169203331-01", b"no trace"],
}
KINDS = [
    dict(zip(names, values, strict=True))
    for count in range(1, 4)
    for names in itertools.permutations(VALUES, count)
    for values in itertools.product(*(VALUES[name] for name in names))
]
TRACES = [b"0af7651916cd43dd8448eb211c80319c", b"1" * 32]
CALLERS = [Caller("10.0.0.1"), Caller("10.0.0.1", key="team")]


def told(name: bytes) -> bytes:
    """An id that came with a request; "made" for any other one, which is new each time."""
    return name if name in (*PARSED.values(), *VALUES[b"x-request-id"], *TRACES) else b"made"


def parsed_head(headers: dict[bytes, bytes], caller: Caller) -> RequestHead:
    head = RequestHead.of(headers, caller)
    head.form, head.priority = form_of(headers), 3
    return head


@pytest.mark.parametrize("caller", CALLERS)
def test_a_head_with_other_values_is_as_if_it_was_parsed(caller: Caller) -> None:
    before = parsed_head(dict(PARSED), caller)
    for values in KINDS:
        head = before.with_values(list(values), list(values.values()))
        expected = parsed_head(PARSED | values, caller)
        assert told(head.request_id()) == told(request_id(expected.headers))
        for name in PARSED:
            assert head.value(name) == expected.headers[name]
        assert head.value(b"baggage") is None
        assert (head.flow, head.form, head.priority) == (expected.flow, expected.form, 3)
        assert head.headers == head.headers == expected.headers
        assert [head.value(name) for name in PARSED] == list(expected.headers.values())
        assert before.headers == PARSED, "others are made from it"


def test_a_name_that_is_no_header_of_the_parsed_head() -> None:
    before = parsed_head({b"host": b"bench", b"user-agent": b"curl"}, CALLERS[0])
    head = before.with_values([b"user-agent"], [b"wget"])
    assert head.request_id() == b""
    assert head.headers == {b"host": b"bench", b"user-agent": b"wget"}
