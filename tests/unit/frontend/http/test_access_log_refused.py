"""The access log and the counts of what was refused before it was there, or was no HTTP."""

from __future__ import annotations

import pytest

from tests.unit.frontend.frontend_double import calling, edge, request, serving
from tests.unit.frontend.http.test_access_log import BODY, INFER, both_roads, log, one, raw, told
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine

__all__ = ["log"]  # a fixture


@both_roads
@pytest.mark.parametrize("goes", [True, False])
@on_loop
async def test_of_a_body_that_is_refused_as_much_is_told_as_came(
    fast: bool, goes: bool, log: pytest.LogCaptureFixture
) -> None:
    """The answer goes out at once, the line when there is nothing more to count."""
    large = {"access_log": "errors", "max_body_mib": 1}
    head, sent = raw()[: -len(BODY)], 100_000
    head = head.replace(b"Content-Length: 16", b"Content-Length: 1100000")
    async with edge(Affine, server=large) as it, serving(it, fast=fast) as site:
        async with calling(site) as caller:
            await caller.send(head)
            assert (await caller.answer()).refused == (413, "too_large")
            assert told(log) == []
            await caller.send(b"x" * (sent if goes else 1_100_000))
        await until(lambda: len(told(log)) == 1, "the line is written")
    (line,) = told(log)
    assert (line["status"], line["model"]) == (413, "affine")
    assert line["error"] == (
        "the body has 1100000 bytes; at most 1048576 are taken: send fewer rows at a time, or"
        " raise max_body_mib"
    )
    assert line["bytes_in"] == (sent if goes else 1_100_000)
    assert line["bytes_out"] > 0


@both_roads
@on_loop
async def test_a_model_that_there_is_not_is_named_by_the_error_alone(
    fast: bool, log: pytest.LogCaptureFixture
) -> None:
    await one(fast, request("/v2/models/nobody/infer", BODY), {"access_log": "errors"})
    (line,) = told(log)
    assert "model" not in line
    assert line["error"] == "there is no model 'nobody'; the server has 'affine', 'picky'"


@both_roads
@on_loop
async def test_what_stops_being_http_in_its_body_is_one_request(
    fast: bool, log: pytest.LogCaptureFixture
) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nHost: pool\r\nTransfer-Encoding: chunked\r\n\r\n"
    server = {"access_log": "errors"}
    async with edge(Affine, server=server) as it, serving(it, fast=fast) as site:
        async with calling(site) as caller:
            await caller.send(head.encode() + b"3\r\nabc\r\n")
            await until(lambda: it.view.memory.held_bytes == 3, "the application has it")
            await caller.send(b"zz\r\n")
            answer = await caller.answer()
        await until(lambda: not site.server.server_state.tasks, "its task has ended")
        counts = it.counters.totals().values("http_requests_total", "code")
    assert answer.refused == (400, "invalid_request")
    assert counts == {"400": 1}
    (line,) = told(log)
    assert (line["status"], line["code"], line["model"]) == (400, "invalid_request", "affine")
    assert line["request_id"] == answer.headers["x-request-id"]
    assert (line["error"], line["bytes_in"]) == (answer.object["error"], 3)


@on_loop
async def test_what_is_no_http_is_counted_as_such() -> None:
    async with edge(Affine) as it, serving(it) as site:
        for sent in (b"\x16\x03\x01\r\n\r\n", raw().replace(b"HTTP/1.1", b"HTTP/9.9")):
            async with calling(site) as caller:
                await caller.send(sent)
                assert (await caller.answer()).status == 400
        totals = it.counters.totals()
        named = {"road": "none", "code": "400", "reason": "invalid_request"}
        assert totals.value("http_requests_total", model="", **named) == 2
        assert totals.value("http_requests_total") == 2
