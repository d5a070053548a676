"""The places of a head where values may differ, and what makes a head one for the parser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import batchpool
from batchpool.frontend.fast.known_head import LONG_HEAD_BYTES, VARYING, varying
from batchpool.frontend.http.caller import flow_of, flow_of_name
from batchpool.frontend.service.endpoint import Endpoint
from tests.unit.frontend.calls import affine
from tests.unit.frontend.fast.test_protocol import ROW, infer, raw
from tests.unit.frontend.loops import on_loop
from tests.unit.frontend.models import Affine
from tests.unit.frontend.roads import Visit, over, same

TEXT = b"POST / HTTP/1.1\r\nX-Request-Id: a\r\nContent-Length: 16\r\n\r\n"
HEADERS = {b"x-request-id": b"a", b"content-length": b"16"}

# Who reads a header of those that may vary: what makes a head, its id and its line in the log.
READERS = {
    "batchpool/frontend/service/task_submission.py",  # of heads with Prefer, parsed each time
    "batchpool/frontend/fast/known_head.py",
    "batchpool/frontend/http/access_log.py",
    "batchpool/frontend/http/request_head.py",
    "batchpool/wire/openapi.py",  # names them
    "batchpool/wire/request_id.py",
}


def test_nothing_else_reads_a_header_that_may_vary() -> None:
    """Whoever comes to read one must see to it that a known head does not mean another thing."""
    root = Path(batchpool.__file__).parent
    spelled = [f'b"{name.decode()}"' for name in VARYING - {b"content-length"}]
    found = {
        str(path.relative_to(root.parent))
        for part in ("frontend", "wire")
        for path in (root / part).rglob("*.py")
        if any(name in path.read_text() for name in spelled)
    }
    assert found == READERS


@pytest.mark.parametrize(
    ("value", "is_known"),
    [
        (b"0af7651916cd43dd", True),
        (b"b7ad6b71-6920-3331", True),
        (b"two words", True),
        (b"", False),
        (b" a", False),
        (b"a ", False),
        (b"a\rb", False),
        (b"a\nb", False),
        (b"a\0b", False),
        (b"a\tb", False),
        (b"caf\xe9", False),
        (b"a\r\nX-More: 1", False),
    ],
)
def test_values_that_no_parser_reads_otherwise(value: bytes, is_known: bool) -> None:
    found = varying(TEXT, HEADERS)
    assert found is not None
    text = TEXT.replace(b": a\r", b": " + value + b"\r")
    expected = ([value, b"16"], len(text)) if is_known else None
    assert found.values(text + b"\r\n\r\n", 0) == expected


def test_a_head_is_known_up_to_the_length_that_is_worth_keeping() -> None:
    found = varying(TEXT, HEADERS)
    assert found is not None
    longest = LONG_HEAD_BYTES - len(TEXT) + 1
    for length, is_known in ((longest, True), (longest + 1, False), (2 * longest, False)):
        text = TEXT.replace(b": a\r", b": " + length * b"a" + b"\r")
        assert (found.values(b"." + text + b"body", 1) is not None) == is_known


def test_places_are_proved_by_what_the_parser_has_reported() -> None:
    text, headers = TEXT, HEADERS
    found = varying(text, headers)
    assert found is not None
    assert found.names == [b"x-request-id", b"content-length"]
    assert b"a".join([found.texts[0], found.texts[1] + b"16" + found.texts[2]]) == text
    assert found.values(text, 0) == ([b"a", b"16"], len(text))
    assert found.values(b"." + text + b"..", 1) == ([b"a", b"16"], 1 + len(text))
    others: list[dict[bytes, bytes]] = [
        {b"x-request-id": b"b", b"content-length": b"16"},
        {b"content-length": b"16", b"x-request-id": b"a"},
        {b"x-request-id": b"a"},
        {**headers, b"x-more": b"1"},
        {b"x-request-ie": b"a", b"content-length": b"16"},
    ]
    for other in others:
        assert varying(text, other) is None
    assert varying(b"\r\n" + text, headers) is None
    assert varying(text + b"\r\n", headers) is None
    assert varying(text[:-2], headers) is None
    assert varying(b"POST / HTTP/1.1\r\nHost: a\r\n\r\n", {b"host": b"a"}) is None


def test_lengths_that_a_parser_may_read_otherwise_are_for_the_parser() -> None:
    found = varying(TEXT, HEADERS)
    assert found is not None
    for length in (b"0", b"016", b"1 6", b"+1", b"1" * 13, b"", b"1a", b"\xb2"):
        assert found.values(TEXT.replace(b"16", length), 0) is None
    assert found.values(TEXT.replace(b"16", b"7"), 0) == ([b"a", b"7"], len(TEXT) - 1)


def test_only_places_that_differed_are_looked_at() -> None:
    found = varying(TEXT, HEADERS)
    assert found is not None
    narrow = found.narrowed([b"a", b"16"], [b"b", b"16"], [])
    assert narrow.names == [b"x-request-id"]
    assert narrow.values(TEXT, 0) == ([b"a"], len(TEXT))
    assert narrow.values(TEXT.replace(b"16", b"17"), 0) is None
    assert found.narrowed([b"a", b"16"], [b"a", b"17"], narrow.names).names == found.names


@on_loop
async def test_a_body_that_is_too_large_or_long_is_for_the_parser() -> None:
    body = json.dumps(affine(1)).encode()

    async def scenario(it: Visit) -> None:
        for behind in (0, 1, 2, 300 * 1024):
            sent = infer(affine(1)).replace(body, body + b" " * behind)
            length = b"Content-Length: %d\r\n"
            it.feed([sent.replace(length % len(body), length % (len(body) + behind))])
            assert (await it.take()).startswith(b"HTTP/1.1 200 ")

    found = await same(scenario, Affine)
    assert (found.fast, found.known) == (3, 2), "the long one is parsed in a thread"


@on_loop
async def test_a_name_that_came_twice_makes_a_head_fixed() -> None:
    async def scenario(it: Visit) -> None:
        for i in (1, 1, 2, 3):
            one = raw(ROW, X_Request_Id=f"id-{i}")
            it.feed([one.replace(b"\r\n\r\n", b"\r\nx-request-id: second\r\n\r\n", 1)])
            await it.take()

    assert (await same(scenario, Affine)).known == 1


@on_loop
async def test_the_flow_is_that_of_each_name(monkeypatch: pytest.MonkeyPatch) -> None:
    flows = []
    submit = Endpoint.submit

    def noted(self: Endpoint, *arguments: Any, **named: Any) -> Any:
        flows.append(named["flow"])
        return submit(self, *arguments, **named)

    monkeypatch.setattr(Endpoint, "submit", noted)
    names = [b"a", b"b", b"c", b"a"]

    async def scenario(it: Visit) -> None:
        for name in names:
            it.feed([raw(ROW, X_Client_Id=name.decode())])
            await it.take()

    assert (await over(True, scenario, Affine)).known == 3
    assert flows == [flow_of_name(flow_of(b"127.0.0.1"), name) for name in names]
