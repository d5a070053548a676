"""A head is known by the places where the parser found its ends, whatever the body looks like."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest
import uvloop
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.unit.frontend.fast.test_protocol import INFER, RAW, raw
from tests.unit.frontend.frontend_double import chunk, request
from tests.unit.frontend.loops import on_loop
from tests.unit.frontend.models import Affine
from tests.unit.frontend.roads import Visit, over, same

ROW_BYTES = 16
NUMBERS = np.arange(1, 5, dtype="f4").tobytes()
BODIES = [
    b"\r\n" + NUMBERS[2:],
    b"\r\n\r\n" + NUMBERS[4:],
    NUMBERS[:12] + b"\r\n\r\n",
    NUMBERS[:14] + b"\r\n",
    b"\r\n" * 8,
    b"\n" * 16,
    NUMBERS,
]


def answered(answer: bytes) -> bytes:
    """The row that was computed."""
    return answer[-ROW_BYTES:]


def computed(body: bytes) -> bytes:
    row: bytes = (np.frombuffer(body, "f4") * np.float32(2) + np.float32(1)).tobytes()
    return row


@pytest.mark.parametrize("behind", [b"", b"\r\n", b"\r\n\r\n"])
@pytest.mark.parametrize("body", BODIES)
@on_loop
async def test_a_body_that_begins_or_ends_like_a_head_is_not_shifted(
    body: bytes, behind: bytes
) -> None:
    async def scenario(it: Visit) -> None:
        for sent in (body, body, NUMBERS, body):
            it.feed([raw(sent) + behind])
            answer = await it.take()
            assert answer.startswith(b"HTTP/1.1 200 ")
            np.testing.assert_array_equal(
                np.frombuffer(answered(answer), "u4"), np.frombuffer(computed(sent), "u4")
            )

    await same(scenario, Affine)


LINE_ENDS = st.sampled_from([b"\r\n", b"\r", b"\n", b"\r\n\r\n", b"ab", b"POST / HTTP/1.1\r\n\r\n"])
ROWS = st.one_of(
    st.binary(min_size=ROW_BYTES, max_size=ROW_BYTES),
    st.lists(LINE_ENDS, min_size=ROW_BYTES).map(lambda parts: b"".join(parts)[:ROW_BYTES]),
)
KINDS = ["plain", "plain", "plain", "named", "chunked", "gzip accepted"]
MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        ROWS,
        st.sampled_from([b"", b"", b"\r\n"]),
        st.sampled_from([b"", b"", b"\r\n", b"\r\n\r\n"]),
    ),
    min_size=1,
    max_size=6,
)


def message(kind: str, body: bytes, before: bytes, behind: bytes) -> bytes:
    if kind == "chunked":
        head = request(INFER, headers={**RAW, "Content-Length": "", "Transfer-Encoding": "chunked"})
        sent = head + chunk(body[:5]) + chunk(body[5:]) + chunk(b"")
    elif kind == "named":
        sent = raw(body, X_Client_Id="alice")
    elif kind == "gzip accepted":
        sent = raw(body, Accept_Encoding="gzip")
    else:
        sent = raw(body)
    return before + sent + behind


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@example([("plain", BODIES[0], b"", b"\r\n")] * 3, [], True)
@example([("plain", BODIES[1], b"", b"\r\n\r\n")] * 3, [], True)
@given(MESSAGES, st.lists(st.integers(0, 1500), max_size=6), st.booleans())
def test_a_known_head_means_what_the_parser_reads(
    messages: list[tuple[str, bytes, bytes, bytes]], cuts: list[int], waits: bool
) -> None:
    """All bodies and framings, cut anywhere: both roads give the same bytes.

    waits: each message comes after the answer to the one before it.
    """
    sent = [message(*parts) for parts in messages]

    async def scenario(it: Visit) -> None:
        for part in sent if waits else [b"".join(sent)]:
            ends = [0, *sorted(at for at in cuts if 0 < at < len(part)), len(part)]
            it.feed(part[a:b] for a, b in itertools.pairwise(ends))
            for _ in range(1 if waits else len(sent)):
                await it.take()

    async def both() -> None:
        async with asyncio.timeout(60):
            slow = await over(False, scenario, Affine)
            fast = await over(True, scenario, Affine)
        assert fast.answers == slow.answers
        for (_, body, _, _), answer in zip(messages, fast.answers, strict=True):
            assert answer.startswith(b"HTTP/1.1 200 ")
            found, expected = (
                np.frombuffer(row, "f4") for row in (answered(answer), computed(body))
            )
            np.testing.assert_array_equal(found, expected)

    with np.errstate(all="ignore"), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(both())
