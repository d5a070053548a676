"""Heads that differ from a known one in values are read as the parser would read them.

What a head may look like next is changed in every way that could mean another request: the answers,
their ids and the end of the connection are those of the ASGI road, which parses every head.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import uvloop
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.unit.frontend.fast.test_protocol import INFER, RAW, raw
from tests.unit.frontend.frontend_double import request
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine
from tests.unit.frontend.roads import Roads, Visit, over

ROW = np.arange(1, 5, dtype="f4").tobytes()
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BASE = {"User-Agent": "curl/8.5.0", "X-Request-Id": "first-1", "traceparent": TRACE, "Via": "p"}
END = raw(ROW, Connection="close")


def told(body: bytes = ROW, **fields: str) -> bytes:
    """A raw request with an id, a trace, a user agent and one more field."""
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    return request(INFER, body, headers={**RAW, **BASE, **named})


def changed(old: bytes, new: bytes) -> bytes:
    """A request in whose head one piece is replaced."""
    whole = told()
    assert whole.count(old) == 1
    return whole.replace(old, new)


ID = b"X-Request-Id: first-1"
LENGTH = b"Content-Length: 16\r\n"
AGENT = b"User-Agent: curl/8.5.0"
VALUES = [
    *(b"other-2", b"a", b"two words", b"a" * 128, b"a" * 129, b"a" * 5000, b"\"':,;{}", b":"),
    *(b"", b" ", b" a", b"a ", b"\ta", b"a\tb", b"a\t"),
    *(b"a\rb", b"a\nb", b"a\r\nX-Client-Id: bob", b"a\r\n b", b"a\r\n\r\n", b"\r\n", b"\r", b"\n"),
    *(b"a\0b", b"\0", b"a\x7f", b"\x01", b"caf\xc3\xa9", b"\xff", b"a\x80"),
    *(b"a\r\nContent-Length: 16", b"a\r\nTransfer-Encoding: chunked", b"a\r\nHost: other"),
]
HEADS: dict[str, bytes] = {
    **{f"id {value[:24]!r}": changed(ID, b"X-Request-Id: " + value) for value in VALUES},
    **{f"agent {value[:24]!r}": changed(AGENT, b"User-Agent: " + value) for value in VALUES},
    "trace": told(traceparent=TRACE.replace("0af7", "1bf8")),
    "trace of zeros": told(traceparent="00-" + "0" * 32 + "-b7ad6b7169203331-01"),
    "no space": changed(ID, b"X-Request-Id:first-2"),
    "space before the colon": changed(ID, b"X-Request-Id : first-2"),
    "other spelling": changed(ID, b"x-request-id: first-2"),
    "shouted": changed(ID, b"X-REQUEST-ID: first-2"),
    "other name as long": changed(ID, b"X-Request-Ie: first-2"),
    "field gone": changed(ID + b"\r\n", b""),
    "twice": changed(ID, ID + b"\r\nX-Request-Id: second"),
    "twice, other spelling": changed(ID, b"X-Request-Id: a\r\nx-request-id: b"),
    "folded": changed(ID, b"X-Request-Id: a\r\n b"),
    "bare LF": changed(ID + b"\r\n", b"X-Request-Id: first-2\n"),
    "bare CR": changed(ID + b"\r\n", b"X-Request-Id: first-2\r"),
    "CR CR LF": changed(ID + b"\r\n", b"X-Request-Id: first-2\r\r\n"),
    "two rows": told(ROW + ROW),
    "three rows": told(ROW * 3, X_Request_Id="first-2"),
    "no row": told(b""),
    "half a row": told(ROW[:8]),
    "row and a half": told(ROW + ROW[:8]),
    "length with zeros": changed(LENGTH, b"Content-Length: 016\r\n"),
    "length with a sign": changed(LENGTH, b"Content-Length: +16\r\n"),
    "length with a blank": changed(LENGTH, b"Content-Length: 16 \r\n"),
    "length with blanks": changed(LENGTH, b"Content-Length:  16\r\n"),
    "length of words": changed(LENGTH, b"Content-Length: 1 6\r\n"),
    "length in hex": changed(LENGTH, b"Content-Length: 0x10\r\n"),
    "length of two": changed(LENGTH, b"Content-Length: 16, 16\r\n"),
    "length twice": changed(LENGTH, LENGTH + LENGTH),
    "length absent": changed(LENGTH, b""),
    "length empty": changed(LENGTH, b"Content-Length:\r\n"),
    "length too short": changed(LENGTH, b"Content-Length: 12\r\n"),
    "length too long": changed(LENGTH, b"Content-Length: 19\r\n"),
    "length of another row": changed(LENGTH, b"Content-Length: 32\r\n"),
    "length beyond the limit": changed(LENGTH, b"Content-Length: 99999999999\r\n"),
    "length beyond numbers": changed(LENGTH, b"Content-Length: 99999999999999999999\r\n"),
    "chunked too": changed(LENGTH, LENGTH + b"Transfer-Encoding: chunked\r\n"),
    "chunked instead": changed(LENGTH, b"Transfer-Encoding: chunked\r\n"),
    "chunked in the agent's place": changed(AGENT, b"Transfer-Encoding: chunked"),
    "expect": told(Expect="100-continue"),
    "close": told(Connection="close"),
    "keep-alive": told(Connection="keep-alive"),
    "upgrade": told(Connection="Upgrade, HTTP2-Settings", Upgrade="h2c"),
    "upgrade in the agent's place": changed(AGENT, b"Upgrade: curl/8.5.0"),
    "another version": changed(b"HTTP/1.1", b"HTTP/1.0"),
    "another method": changed(b"POST", b"GET"),
    "another path": changed(INFER.encode(), b"/v2/models/affine/infers"),
    "a browser": told(Origin="http://other.example"),
    "compressed": told(Content_Encoding="gzip"),
    "other fixed field": told(Via="q"),
    "priority": told(X_Request_Priority="3"),
    "JSON answer": told(Accept="application/json"),
    "empty line before it": b"\r\n" + told(X_Request_Id="first-2"),
    "empty line behind it": told(X_Request_Id="first-2") + b"\r\n",
    "two of them": told(X_Request_Id="first-2") + told(X_Request_Id="first-3"),
    "end of head in the id": changed(ID, ID + b"\r\n\r\n"),
    "nothing but the id": b"first-2\r\n\r\n",
}


def log_lines(log: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The lines of the access log, without what must differ from road to road."""
    lines = []
    for record in log.records:
        if record.name == "batchpool.access" and isinstance(record.args, Mapping):
            line = dict(record.args)
            for name in ("duration_ms", "road"):
                del line[name]
            if len(line["request_id"]) == 16:
                line["request_id"] = "made"
            lines.append(line)
    log.clear()
    return lines


async def until_quiet(it: Visit) -> None:
    """Wait until the server has answered all that came whole, or has ended the connection."""
    connections: set[Any] = it.site.server.server_state.connections

    def is_quiet() -> bool:
        for connection in connections:
            if connection.transport.is_closing():
                return True
            cycle = connection.cycle
            answered = cycle is None or cycle.response_complete
            if connection._unparsed.size or not (answered or connection._arriving):
                return False
        return True

    await until(is_quiet, "the server is quiet")


async def conversation(it: Visit, parts: list[list[bytes]], waits: bool) -> None:
    """Send each part in its pieces, then requests that end the connection, and take all bytes."""
    for pieces in [*parts, [END], [END]]:
        for piece in pieces:
            if it.site.server.server_state.connections:
                it.feed([piece])
        if waits:
            await until_quiet(it)
    await until_quiet(it)
    if not it.caller.writer.is_closing():
        it.caller.writer.write_eof()  # of what is refused unread, no end may have come
    await it.take_end()


async def both(parts: list[list[bytes]], waits: bool, **facts: Any) -> tuple[Roads, Roads]:
    async def scenario(it: Visit) -> None:
        await conversation(it, parts, waits)

    slow = await over(False, scenario, Affine, **facts)
    return slow, await over(True, scenario, Affine, **facts)


@pytest.mark.parametrize("name", HEADS)
@on_loop
async def test_a_head_that_differs_from_a_known_one(name: str) -> None:
    learned = [told(X_Request_Id=f"before-{i}") for i in range(3)]
    behind = [told(X_Request_Id=f"behind-{i}") for i in range(2)]
    parts = [[one] for one in [*learned, HEADS[name], *behind]]
    slow, fast = await both(parts, waits=True)
    assert fast.answers == slow.answers
    assert fast.known >= 2


@on_loop
async def test_ids_and_the_log_are_those_of_each_request(caplog: pytest.LogCaptureFixture) -> None:
    sent = [
        *(told(X_Request_Id=f"id-{i}", X_Client_Id=f"caller-{i % 3}") for i in range(6)),
        *(told(ROW * (1 + i % 3), X_Request_Id="", traceparent=TRACE.replace("0a", f"1{i}"))
          for i in range(6)),
        *(told(X_Request_Id="no longer" * 30, User_Agent=f"agent/{i}") for i in range(4)),
    ]  # fmt: skip
    caplog.set_level("INFO", "batchpool.access")
    found = []
    for fast in (False, True):

        async def scenario(it: Visit) -> None:
            for one in sent:
                it.feed([one])
                await it.take()

        roads = await over(fast, scenario, Affine, server={"access_log": "all"})
        found.append((roads.answers, log_lines(caplog)))
        assert not fast or roads.known >= 11
    assert found[0] == found[1]
    answers, lines = found[1]
    for i in range(6):
        assert f"\r\nx-request-id: id-{i}\r\n".encode() in answers[i]
        assert lines[i]["client"] == f"caller-{i % 3}"
        assert lines[6 + i]["bytes_in"] == 16 * (1 + i % 3)
        assert lines[6 + i]["request_id"] == TRACE[3:35].replace("0a", f"1{i}", 1)


@on_loop
async def test_bodies_of_other_lengths_are_their_own() -> None:
    async def scenario(it: Visit) -> None:
        for n in (1, 2, 3, 1, 4, 2):
            it.feed([told(ROW * n, X_Request_Id=f"{n}")])
            answer = await it.take()
            assert answer[-16 * n :] == (np.frombuffer(ROW * n, "f4") * 2 + 1).tobytes()

    assert (await over(True, scenario, Affine)).known == 5


@on_loop
async def test_two_orders_take_turns_on_one_connection() -> None:
    fields = [f"{name}: {value}\r\n" for name, value in {**RAW, **BASE, "Host": "pool"}.items()]

    async def scenario(it: Visit) -> None:
        for i in range(10):
            lines = "".join(fields if i % 2 else reversed(fields)).replace("first-1", f"id-{i}")
            head = f"POST {INFER} HTTP/1.1\r\n{lines}Content-Length: 16\r\n\r\n"
            it.feed([head.encode() + ROW])
            assert f"x-request-id: id-{i}\r\n".encode() in await it.take()

    assert (await over(True, scenario, Affine)).known == 8


@on_loop
async def test_heads_that_never_come_again_are_given_up_and_equal_ones_are_found_later() -> None:
    async def scenario(it: Visit) -> None:
        for i in range(40):
            it.feed([told(Via=f"hop-{i:02}")])
            await it.take()
        assert it.found.known == 0
        for i in range(40):
            it.feed([told(X_Request_Id=f"same-{i}")])
            await it.take()
        assert it.found.known >= 20

    await over(True, scenario, Affine)


PIECES = st.sampled_from(
    b"\r\n|\r|\n|\0| |\t|:|a|id-7|\x80|X-Request-Id: |Content-Length: 3|Host: b".split(b"|")
)
VALUE = st.one_of(
    st.from_regex(rb"[!-~]{1,40}", fullmatch=True),
    st.lists(PIECES, max_size=4).map(b"".join),
)
FIELDS = st.sampled_from(
    [b"X-Request-Id", b"X-Request-Id", b"traceparent", b"User-Agent", b"Content-Length", b"Via"]
)
CHANGES = st.one_of(
    st.sampled_from(sorted(HEADS)).map(HEADS.__getitem__),
    st.tuples(FIELDS, VALUE).map(lambda made: replaced(*made)),
    st.integers(0, 400).map(lambda at: told(X_Request_Id=f"id-{at}")),
    st.integers(1, 4).map(lambda n: told(ROW * n, X_Request_Id=f"rows-{n}")),
)


def replaced(name: bytes, value: bytes) -> bytes:
    """A request in which this field has this value."""
    head, end, body = told().partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    own = [name + b": " + value if line.startswith(name) else line for line in lines]
    return b"\r\n".join(own) + end + body


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@example([told(), told(X_Request_Id="b"), told(X_Request_Id="c")], [150], True)
@given(
    st.lists(CHANGES, min_size=1, max_size=6),
    st.lists(st.integers(0, 700), max_size=3),
    st.booleans(),
)
def test_any_head_behind_a_known_one(sent: list[bytes], cuts: list[int], waits: bool) -> None:
    """All values and framings, cut anywhere: both roads give the same bytes."""
    learned = [told(), told(X_Request_Id="first-9")]
    parts = []
    for one in [*learned, *sent, told(X_Request_Id="last")]:
        ends = [0, *sorted({at for at in cuts if 0 < at < len(one)}), len(one)]
        parts.append([one[a:b] for a, b in itertools.pairwise(ends)])
    whole = [b"".join(pieces) for pieces in parts]

    async def bounded() -> None:
        async with asyncio.timeout(60):
            slow, fast = await both(parts if waits else [[b"".join(whole)]], waits)
        assert fast.answers == slow.answers

    with np.errstate(all="ignore"), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())
