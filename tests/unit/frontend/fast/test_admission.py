"""A request is admitted once: by its claim if it came whole, else when its head has come."""

from __future__ import annotations

from typing import Any

import pytest

from batchpool.client.lane_client import LaneClient
from batchpool.core.errors import Overloaded
from tests.unit.frontend.calls import affine
from tests.unit.frontend.fast.test_protocol import ROW, SHORT, infer, raw
from tests.unit.frontend.fast.test_protocol_states import STATES, overload, refused
from tests.unit.frontend.frontend_double import request
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine
from tests.unit.frontend.roads import Visit, over, same

LONG_JSON = infer(affine(*range(8000)))
FAULTY = {
    "half a row": raw(ROW[:7]),
    "no JSON": request("/v2/models/affine/infer", b"{"),
    "undeclared parameter": infer(affine(1, parameters={"no": 1})),
    "bad timeout": raw(ROW, X_Request_Timeout_Ms="-1"),
    "more rows than slots": raw(ROW * 99),
}


def checks_of(it: Visit, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each check of the lane from now on."""
    found: list[int] = []
    check = LaneClient.check

    def noted(self: LaneClient, n: int, *rest: Any, **more: Any) -> None:
        found.append(n)
        check(self, n, *rest, **more)

    monkeypatch.setattr(LaneClient, "check", noted)
    return found


@pytest.mark.interpreted
@pytest.mark.parametrize("sent", [SHORT, infer(affine(1)), raw(ROW * 3)])
@on_loop
async def test_a_whole_request_is_checked_once(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(it: Visit) -> None:
        checks = checks_of(it, monkeypatch)
        for known in (False, True):
            it.feed([sent])
            assert b"200" in await it.take()
            assert checks == [3 if sent == raw(ROW * 3) else 1], known
            checks.clear()
        it.feed([sent[:-3], sent[-3:]])
        assert b"200" in await it.take()
        assert len(checks) == 2, "at its head, and at its claim"

    assert (await over(True, scenario, Affine)).known == 1


@pytest.mark.parametrize("cut", [0, 3, 20], ids=["whole", "no tail", "no body"])
@pytest.mark.parametrize("name", [*FAULTY, "nothing is wrong with it"])
@pytest.mark.parametrize("state", STATES)
@on_loop
async def test_the_lane_refuses_first_and_once(state: str, name: str, cut: int) -> None:
    """However the bytes are cut, and whatever is wrong with the body."""
    sent = FAULTY.get(name, SHORT)
    at = max(len(sent) - cut, sent.index(b"\r\n\r\n") + 4) if cut else len(sent)

    async def scenario(it: Visit) -> None:
        STATES[state](it)
        before = refused(it) if state != "pool gone" else 0
        it.feed([sent[:at]])
        answer = await it.take()
        it.feed([sent[at:]] if sent[at:] else [])
        assert answer.startswith(b"HTTP/1.1 50")
        assert b"retry-after" in answer or state in ("broken", "pool gone")
        if state in ("overloaded", "at its share"):
            assert refused(it) == before + 1
        await it.send(request("/v2", method="GET"))  # the connection is in step
        assert b'"batchpool"' in await it.take()

    assert (await same(scenario, Affine)).fast == 1


@pytest.mark.parametrize("name", FAULTY)
@on_loop
async def test_without_a_refusal_the_fault_is_told(name: str) -> None:
    async def scenario(it: Visit) -> None:
        for _ in range(2):
            it.feed([FAULTY[name]])
            assert (await it.take()).startswith(b"HTTP/1.1 4")
        assert refused(it) == 0

    await same(scenario, Affine)


@on_loop
async def test_a_raised_priority_of_the_header_counts_for_a_whole_request() -> None:
    async def scenario(it: Visit) -> None:
        overload(it)
        for _ in range(2):  # from the second time on the head is known
            it.feed([raw(ROW, X_Request_Priority="127")])
            assert b"200" in await it.take()
        assert refused(it) == 0
        # A parameter is not known when only the head has come: it does not count either way.
        it.feed([infer(affine(1, parameters={"priority": 1}))])
        assert b"503" in await it.take()
        assert refused(it) == 1

    assert (await same(scenario, Affine)).known == 1


@on_loop
async def test_long_json_is_refused_and_counted_once() -> None:
    async def scenario(it: Visit) -> None:
        overload(it)
        it.feed([LONG_JSON])
        assert b"503" in await it.take()
        assert refused(it) == 1

    await same(scenario, Affine, slots=16384)


@on_loop
async def test_a_body_that_is_still_to_come_is_refused_by_its_head() -> None:
    """Its caller reads the refusal before it sends the body."""

    async def scenario(it: Visit) -> None:
        overload(it)
        large = raw(bytes(1 << 20))
        await it.send(large[: -(1 << 20)])
        assert b"503" in await it.take()
        assert it.of.view.memory.held_bytes == 0
        await it.send(large[-(1 << 20) :])
        await it.send(request("/v2", method="GET"))
        assert b'"batchpool"' in await it.take()
        assert refused(it) == 1

    assert (await same(scenario, Affine)).fast == 1


@on_loop
async def test_what_the_claim_refuses_may_come_back_as_soon_as_the_head_is_told() -> None:
    """Retry-After of a whole request is that of its head where it has one row."""

    async def scenario(it: Visit) -> None:
        overload(it)
        lane_client = it.of.pool.lane_client("affine")
        lane_client.drain_rate.count(1, 10**9)
        lane_client.drain_rate.count(200, 2 * 10**9)  # 200 rows a second
        it.feed([SHORT])
        whole = await it.take()
        it.feed([SHORT[:-3], SHORT[-3:]])
        assert await it.take() == whole
        with pytest.raises(Overloaded) as exc:
            lane_client.check(1, 3 * 10**9)
        assert b'"retry_after_ms":%d}' % exc.value.retry_after_ms in whole

    await same(scenario, Affine)


@on_loop
async def test_a_head_is_admitted_anew_while_the_first_is_under_way() -> None:
    async def scenario(it: Visit) -> None:
        it.of.pool.hold = True
        it.feed([SHORT])
        lane_client = it.of.pool.lane_client("affine")
        await until(lambda: lane_client.allocator.claimed == 1, "it is under way")
        overload(it)
        it.feed([SHORT])  # behind it, so it waits
        it.of.pool.release()
        assert b"200" in await it.take()
        assert b"503" in await it.take()
        assert refused(it) == 1

    assert (await same(scenario, Affine)).fast == 2
