"""A head that is, byte for byte, its connection's last one is not parsed again.

Whatever comes behind it, the answers are those of the ASGI road.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchpool.client.pending_request import PendingRequest
from batchpool.frontend.http.request_head import RequestHead
from tests.unit.frontend.fast.test_protocol import INFER, RAW, ROW, SHORT, raw
from tests.unit.frontend.fast.test_protocol_states import STATES, refused
from tests.unit.frontend.frontend_double import request
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine
from tests.unit.frontend.roads import Visit, over, same

OTHER = np.arange(4, 8, dtype="f4").tobytes()
TOLD = raw(OTHER)


@on_loop
async def test_the_body_is_that_of_this_request() -> None:
    async def scenario(it: Visit) -> None:
        for sent in (SHORT, TOLD, TOLD, SHORT):
            it.feed([sent])
            await it.take()

    found = await same(scenario, Affine)
    bodies = [np.frombuffer(answer[-16:], "f4") for answer in found.answers]
    first, second = (np.frombuffer(row, "f4") * 2 + 1 for row in (ROW, OTHER))
    assert [body.tolist() for body in bodies] == [
        expected.tolist() for expected in (first, second, second, first)
    ]
    assert found.known == 3


def shifted(sent: bytes) -> bytes:
    """As long as before, but its last byte of the head's last field is another."""
    return sent.replace(b"X-Client-Id: alice", b"X-Client-Id: alicf")


NAMED = raw(ROW, X_Client_Id="alice")
BEHIND: dict[str, list[bytes]] = {
    "a byte of the head differs": [shifted(NAMED)],
    "cut in the head": [NAMED[:20], NAMED[20:]],
    "cut behind the head": [NAMED[:-16], NAMED[-16:]],
    "cut in the body": [NAMED[:-3], NAMED[-3:]],
    "two in one read": [NAMED + NAMED],
    "one and a half": [NAMED + NAMED[:50], NAMED[50:]],
    "one and a half body": [NAMED + NAMED[:-2], NAMED[-2:]],
    "an empty line before it": [b"\r\n" + NAMED],
    "an empty line behind it": [NAMED + b"\r\n"],
    "an empty line by itself": [b"\r\n"],
    "half an empty line": [b"\r"],
    "another path": [NAMED.replace(INFER.encode(), b"/v2/models/affine/infers")],
    "another verb": [NAMED.replace(b"POST", b"PUTT")],
    "the end": [raw(ROW, X_Client_Id="alice", Connection="close")],
    "nonsense as long": [b"\0" * len(NAMED)],
    "metadata": [request("/v2", method="GET")],
    "ASGI's": [request(INFER, ROW, headers={**RAW, "Prefer": "return=minimal"})],
}


@pytest.mark.parametrize("name", BEHIND)
@on_loop
async def test_what_comes_behind_a_known_head(name: str) -> None:
    behind = BEHIND[name]
    answers = b"".join(behind).count(b"HTTP/1.1") or ("nonsense" in name)
    over = name in ("the end", "nonsense as long", "another verb")

    async def scenario(it: Visit) -> None:
        for _ in range(2):
            it.feed([NAMED])
            await it.take()
        it.feed(behind)
        for _ in range(answers):
            await it.take()
        if over:
            await it.take_end()
            return
        for _ in range(2):
            it.feed([NAMED])
            await it.take()
        it.feed([request("/v2", method="GET")])
        assert b'"batchpool"' in await it.take()

    await same(scenario, Affine)


@on_loop
async def test_a_known_head_while_the_last_request_is_under_way() -> None:
    async def scenario(it: Visit) -> None:
        it.feed([SHORT])
        await it.take()
        it.of.pool.hold = True
        it.feed([SHORT])
        it.feed([TOLD])
        it.feed([SHORT])
        it.of.pool.release()
        for _ in range(3):
            await it.take()

    assert (await same(scenario, Affine)).known == 3


@pytest.mark.parametrize("state", STATES)
@on_loop
async def test_refusals_of_a_known_head(state: str) -> None:
    async def scenario(it: Visit) -> None:
        it.feed([SHORT])
        await it.take()
        before = refused(it)
        STATES[state](it)
        for _ in range(3):
            it.feed([SHORT])
            await it.take()
        if state in ("overloaded", "at its share"):
            assert refused(it) == before + 3

    assert (await same(scenario, Affine)).known == 3


@on_loop
async def test_a_caller_that_goes_takes_its_row_back() -> None:
    async def scenario(it: Visit) -> None:
        it.feed([SHORT])
        await it.take()
        lane_client = it.of.pool.lane_client("affine")
        it.of.pool.hold = True
        it.feed([SHORT])
        await until(lambda: lane_client.allocator.claimed == 1, "the row is claimed")
        it.caller.writer.close()
        await until(lambda: lane_client.in_flight() == [], "it is taken back")
        it.of.pool.release()
        await until(lambda: lane_client.allocator.claimed == 0, "the slot is free")

    assert (await same(scenario, Affine)).known == 1


@pytest.mark.interpreted
@on_loop
async def test_a_known_head_arrives_anew_each_time() -> None:
    """A request's own timeout counts from its own arrival."""
    heads: list[RequestHead] = []

    async def scenario(it: Visit) -> None:
        endpoint = it.of.view.endpoints.by_model["affine"]
        submit = endpoint.submit

        def noted(head: RequestHead, *rest: Any) -> PendingRequest:
            heads.append(head)
            return submit(head, *rest)

        endpoint.submit = noted  # type: ignore[method-assign]
        for _ in range(3):
            it.feed([raw(ROW, X_Request_Timeout_Ms="60000", X_Request_Priority="3")])
            await it.take()

    assert (await over(True, scenario, Affine)).known == 2
    times = [head.at_ns for head in heads]
    assert times == sorted(set(times))
    assert [head.priority for head in heads] == [3, 3, 3]


@on_loop
async def test_a_known_head_is_refused_while_memory_is_used_up() -> None:
    async def scenario(it: Visit) -> None:
        memory = it.of.view.memory
        it.feed([SHORT])
        await it.take()
        memory.count(1, memory.max_bytes)
        it.feed([SHORT])
        await it.take()
        memory.give_back(1, memory.max_bytes)
        it.feed([SHORT])
        await it.take()

    found = await same(scenario, Affine)
    assert [answer[9:12] for answer in found.answers] == [b"200", b"503", b"200"]
