"""Request ids and the access log: the same on both HTTP roads, in answers, errors and the log."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from batchpool.frontend.http.request_context import current_log_fields
from batchpool.frontend.service.http_endpoint import HttpEndpoint
from tests.unit.frontend.calls import affine
from tests.unit.frontend.frontend_double import RawAnswer, calling, edge, request, serving
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine, Picky
from tests.unit.frontend.roads import Roads, Visit, over

INFER = "/v2/models/affine/infer"
RAW = {"Inference-Header-Content-Length": "0"}
BODY = np.arange(4, dtype="f4").tobytes()
MADE = re.compile(r"[0-9a-f]{16}")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
ALL = {"access_log": "all"}
both_roads = pytest.mark.parametrize("fast", [True, False], ids=["fast", "asgi"])


def raw(body: bytes = BODY, path: str = INFER, **headers: str) -> bytes:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return request(path, body, headers={**RAW, **fields})


def id_in(answer: bytes) -> str | None:
    found = re.search(rb"\r\nx-request-id: ([^\r]*)\r\n", answer)
    return found[1].decode() if found else None


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="batchpool")
    return caplog


def told(log: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The lines of the access log."""
    lines = []
    for record in log.records:
        if record.name == "batchpool.access":
            assert isinstance(record.args, Mapping)
            lines.append({k: v for k, v in record.args.items() if v is not None})
    return lines


async def answers_to(fast: bool, *sent: bytes, **server: Any) -> Roads:
    """The answers to requests that are sent one after another."""

    async def scenario(it: Visit) -> None:
        for one_request in sent:
            it.feed([one_request])
            await it.take()

    return await over(fast, scenario, Affine, Picky, server=server)


# -- request ids -------------------------------------------------------------------------------


@both_roads
@on_loop
async def test_a_callers_id_comes_back(fast: bool) -> None:
    sent = raw(X_Request_Id="job-7/row:1")
    found = await answers_to(fast, sent, sent, sent)
    assert [id_in(answer) for answer in found.answers] == ["job-7/row:1"] * 3
    assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in found.answers)
    assert found.known == (2 if fast else 0)  # of a known head its id is known too


@both_roads
@on_loop
async def test_without_an_id_a_good_answer_has_none(fast: bool) -> None:
    found = await answers_to(fast, raw(), raw())
    assert [id_in(answer) for answer in found.answers] == [None, None]


@both_roads
@on_loop
async def test_a_trace_is_an_id(fast: bool) -> None:
    parent = f"00-{TRACE}-00f067aa0ba902b7-01"
    sent = [raw(traceparent=parent), raw(traceparent=parent, X_Request_Id="mine")]
    found = await answers_to(fast, *sent)
    assert [id_in(answer) for answer in found.answers] == [TRACE, "mine"]


@both_roads
@on_loop
async def test_an_id_that_could_do_harm_is_replaced_each_time_anew(fast: bool) -> None:
    async with edge(Affine) as it, serving(it, fast=fast) as site, calling(site) as caller:
        found = []
        for value in ("two words", "two words", "two words", "x" * 129, "caf\N{COPYRIGHT SIGN}"):
            await caller.send(raw(X_Request_Id=value))
            answer = await caller.answer()
            assert answer.status == 200
            found.append(answer.headers["x-request-id"])
        assert all(MADE.fullmatch(name) for name in found)
        assert len(set(found)) == len(found)


REFUSED = {
    "wrong size": (raw(BODY[:-1]), 400),
    "bad priority": (raw(X_Request_Priority="high"), 400),
    "unknown type": (raw(Content_Type="text/html"), 415),
    "no such model": (request("/v2/models/nobody/infer", BODY), 404),
    "no such path": (request("/nowhere", BODY), 404),
    "wrong verb": (request(INFER, method="GET"), 405),
    "model error": (raw(np.full(2, -1.0).tobytes(), "/v2/models/picky/infer"), 500),
}


@both_roads
@pytest.mark.parametrize("name", REFUSED)
@on_loop
async def test_every_error_has_an_id(fast: bool, name: str) -> None:
    sent, status = REFUSED[name]
    named = sent.replace(b"Host: pool\r\n", b"Host: pool\r\nX-Request-Id: mine\r\n")
    async with edge(Affine, Picky) as it, serving(it, fast=fast) as site, calling(site) as caller:
        await caller.send(sent)
        made = await caller.answer()
        await caller.send(named)
        own = await caller.answer()
    assert (made.status, own.status) == (status, status)
    assert MADE.fullmatch(made.headers["x-request-id"])
    assert own.headers["x-request-id"] == "mine"
    assert made.object.keys() == own.object.keys() == {"error", "code"}


@on_loop
async def test_what_is_no_http_has_an_id_and_a_line(log: pytest.LogCaptureFixture) -> None:
    server = {"access_log": "errors"}
    async with edge(Affine, server=server) as it, serving(it) as site:
        async with calling(site) as caller:
            await caller.send(b"\x16\x03\x01\r\n\r\n")
            answer = await caller.answer()
        async with calling(site) as caller:
            await caller.send(raw())
            assert (await caller.answer()).status == 200
            await caller.send(
                b"POST /a?b HTTP/1.1\r\nX-Request-Id: mine\r\nA: b\r\nbad header\r\n\r\n"
            )
            other = await caller.answer()
    assert (answer.status, other.status) == (400, 400)
    assert MADE.fullmatch(answer.headers["x-request-id"])
    assert other.headers["x-request-id"] == "mine"
    assert [
        (line["path"], line["request_id"], line["code"], line["error"], line["road"])
        for line in told(log)
    ] == [
        ("-", answer.headers["x-request-id"], "invalid_request", answer.object["error"], "none"),
        ("/a", "mine", "invalid_request", other.object["error"], "none"),
    ]


# -- the access log ----------------------------------------------------------------------------


async def one(fast: bool, sent: bytes, server: Mapping[str, Any]) -> RawAnswer:
    async with (
        edge(Affine, Picky, server=server) as it,
        serving(it, fast=fast) as site,
        calling(site) as caller,
    ):
        await caller.send(sent)
        return await caller.answer()


@both_roads
@on_loop
async def test_a_line_tells_of_a_request(fast: bool, log: pytest.LogCaptureFixture) -> None:
    sent = raw(BODY * 3, INFER, X_Client_Id="nightly", X_Request_Id="mine")
    answer = await one(fast, sent, ALL)
    (line,) = told(log)
    assert 0 < line.pop("duration_ms") < 60_000
    assert line == {
        "peer": "127.0.0.1",
        "method": "POST",
        "path": INFER,
        "status": 200,
        "request_id": "mine",
        "code": "ok",
        "model": "affine",
        "rows": 3,
        "bytes_in": 48,
        "bytes_out": len(answer.body),
        "client": "nightly",
        "road": "fast" if fast else "asgi",
    }
    assert log.records[-1].getMessage() == f"127.0.0.1 POST {INFER} 200"


@both_roads
@on_loop
async def test_a_logged_request_without_an_id_gets_one(
    fast: bool, log: pytest.LogCaptureFixture
) -> None:
    answer = await one(fast, raw(), ALL)
    (line,) = told(log)
    assert answer.status == 200
    assert MADE.fullmatch(line["request_id"])
    assert answer.headers["x-request-id"] == line["request_id"]
    assert "client" not in line


@both_roads
@on_loop
async def test_the_log_of_errors_has_no_good_requests(
    fast: bool, log: pytest.LogCaptureFixture
) -> None:
    sent = [raw(), raw(X_Request_Id="good"), raw(BODY[:-1]), raw(X_Request_Priority="high")]
    found = await answers_to(fast, *sent, access_log="errors")
    assert [id_in(answer) for answer in found.answers] == [None, "good", "made", "made"]
    size, priority = told(log)
    assert (size["status"], size["code"], size["model"]) == (400, "invalid_request", "affine")
    assert size["error"].startswith("input 'x': the raw body has 15 bytes; whole rows of ")
    assert size["bytes_in"] == 15
    assert (priority["status"], priority["model"]) == (400, "affine")
    assert priority["error"] == (
        "header X-Request-Priority is 'high'; a whole number from 0 to 255 was expected"
    )
    assert priority["bytes_in"] == 16


@both_roads
@on_loop
async def test_off_is_silent(fast: bool, log: pytest.LogCaptureFixture) -> None:
    await answers_to(fast, raw(), raw(BODY[:-1]), access_log="off")
    assert told(log) == []


@on_loop
async def test_an_access_log_leaves_the_fast_road_in_use(log: pytest.LogCaptureFixture) -> None:
    found = await answers_to(True, raw(), raw(), raw(), **ALL)
    assert (found.fast, found.known) == (3, 2)
    assert [line["road"] for line in told(log)] == ["fast"] * 3
    assert len({line["request_id"] for line in told(log)}) == 3


@both_roads
@on_loop
async def test_the_sample_is_by_id_and_the_same_on_both_roads(
    fast: bool, log: pytest.LogCaptureFixture
) -> None:
    sent = [raw(X_Request_Id=f"request-{i}") for i in range(40)]
    await answers_to(fast, *sent, **ALL, access_log_sample=0.2)
    names = [line["request_id"] for line in told(log)]
    assert names == [f"request-{i}" for i in (2, 6, 10, 14, 18, 20, 24, 28)]


@both_roads
@on_loop
async def test_without_ids_the_sample_is_counted(fast: bool, log: pytest.LogCaptureFixture) -> None:
    found = await answers_to(fast, *[raw()] * 10, raw(BODY[:-1]), **ALL, access_log_sample=0.25)
    assert [id_in(answer) for answer in found.answers].count("made") == 3
    assert [line["status"] for line in told(log)] == [200, 200, 400]


@on_loop
async def test_every_path_has_its_line(log: pytest.LogCaptureFixture) -> None:
    sent = [
        request("/v2?key=secret", method="GET"),
        request("/v2/models/affine/config", method="GET"),
        request("/v2/models/affine/versions/1/infer", json.dumps(affine(1, 2)).encode()),
    ]
    await answers_to(True, *sent, **ALL)
    assert [
        (line["method"], line["path"], line.get("rows"), line["road"]) for line in told(log)
    ] == [
        ("GET", "/v2", None, "asgi"),
        ("GET", "/v2/models/affine/config", None, "asgi"),
        ("POST", "/v2/models/affine/versions/1/infer", 2, "fast"),
    ]


@on_loop
async def test_a_body_in_chunks_is_counted_as_it_comes(log: pytest.LogCaptureFixture) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nHost: pool\r\nInference-Header-Content-Length: 0\r\n"
    sent = head.encode() + b"Transfer-Encoding: chunked\r\n\r\n10\r\n" + BODY + b"\r\n0\r\n\r\n"
    await answers_to(True, sent, **ALL)
    (line,) = told(log)
    assert (line["status"], line["bytes_in"], line["road"]) == (200, 16, "asgi")


@both_roads
@pytest.mark.parametrize("part", [16, 8])
@on_loop
async def test_a_caller_that_leaves_has_a_line(
    fast: bool, part: int, log: pytest.LogCaptureFixture
) -> None:
    sent = raw(X_Request_Id="mine")
    async with edge(Affine, server={"access_log": "errors"}) as it, serving(it, fast=fast) as site:
        it.pool.hold = True
        async with calling(site) as caller:
            await caller.send(sent[: len(sent) - 16 + part])
            await until(lambda: site.under_way == 1, "the request is under way")
        await until(lambda: site.connections == 0, "the connection is ended")
        await until(lambda: len(told(log)) == 1, "the line is written")
        it.pool.release()
    (line,) = told(log)
    assert (line["status"], line["code"], line["request_id"]) == (499, "cancelled", "mine")
    assert (line["model"], line["bytes_in"], line["bytes_out"]) == ("affine", part, 0)
    assert "error" not in line


@on_loop
async def test_a_reload_changes_the_access_log(log: pytest.LogCaptureFixture) -> None:
    async with edge(Affine) as it, serving(it) as site, calling(site) as caller:
        for which, lines in (("off", 0), ("all", 1), ("errors", 1), ("all", 2)):
            it.pool.session.server["access_log"] = which
            it.view.learn()
            await caller.send(raw())
            assert (await caller.answer()).status == 200
            assert len(told(log)) == lines


# -- other lines about a request ---------------------------------------------------------------


@both_roads
@on_loop
async def test_a_model_error_is_logged_with_its_request_and_where_it_failed(
    fast: bool, log: pytest.LogCaptureFixture
) -> None:
    sent = raw(np.full(2, -1.0).tobytes(), "/v2/models/picky/infer", X_Request_Id="mine")
    answer = await one(fast, sent, {"access_log": "off"})
    assert answer.refused == (500, "model_error")
    of_front = [r for r in log.records if r.name == "batchpool.frontend"]
    (said,) = [r.args for r in of_front if isinstance(r.args, Mapping)]
    assert (said["request_id"], said["model"], said["code"]) == ("mine", "picky", "model_error")
    assert said["error"] == "ValueError: a negative number came"
    of_worker = [r.args for r in log.records if r.name == "batchpool.worker"]
    batches = [args["batch"] for args in of_worker if isinstance(args, Mapping)]
    assert said["batch"] == batches[-1]


@pytest.mark.interpreted
@both_roads
@on_loop
async def test_a_fault_of_ours_is_logged_with_the_id_that_its_caller_gets(
    fast: bool, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with edge(Affine) as it, serving(it, fast=fast) as site, calling(site) as caller:
        monkeypatch.setattr(
            type(it.view.endpoints.by_model["affine"]), "submit", lambda *a, **k: 1 / 0
        )
        await caller.send(raw())
        answer = await caller.answer()
    assert answer.refused == (500, "internal")
    (record,) = [r for r in log.records if r.name == "batchpool.frontend"]
    assert isinstance(record.args, Mapping)
    assert record.args["request_id"] == answer.headers["x-request-id"]
    assert record.exc_info is not None


@on_loop
async def test_other_lines_of_a_task_have_its_requests_id(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Mapping[str, str]] = []

    async with edge(Affine) as it, serving(it, fast=False) as site, calling(site) as caller:

        def admit(endpoint: HttpEndpoint, _head: object) -> HttpEndpoint:
            found.append(current_log_fields())
            return endpoint

        monkeypatch.setattr(HttpEndpoint, "admit", admit)
        await caller.send(raw(X_Request_Id="mine"))
        assert (await caller.answer()).status == 200
    assert found == [{"request_id": "mine"}]
    assert current_log_fields() == {}


@on_loop
async def test_probes_get_a_line_only_if_they_fail(log: pytest.LogCaptureFixture) -> None:
    server = {**ALL, "root_path": "/own"}
    paths = ["/v2/health/live", "/v2/health/ready", "/v2/models/affine/ready", "/metrics", "/v2"]
    paths += ["/own/v2/health/live", "/own/v2", "/v2/models/affine/versions/1/ready"]
    async with edge(Affine, server=server) as it, serving(it) as site, calling(site) as caller:
        for path in [*paths, "/v2/models/nobody/ready"]:
            await caller.send(request(path, method="GET"))
            await caller.answer()
        await until(lambda: len(told(log)) >= 3, "a line of the last request")
    assert [(line["path"], line["status"]) for line in told(log)] == [
        ("/v2", 200),
        ("/own/v2", 200),
        ("/v2/models/nobody/ready", 404),
    ]
