"""The gate of a front end on both HTTP paths: callers behind proxies, hosts, browsers."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import Overloaded
from batchpool.frontend.fast.protocol import FastProtocol
from tests.unit.frontend.frontend_double import RawAnswer, calling, edge, request, serving
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine
from tests.unit.frontend.roads import Visit, over

INFER = "/v2/models/affine/infer"
ROW = np.arange(4, dtype="f4").tobytes()
RAW = {"Inference-Header-Content-Length": "0"}
both_roads = pytest.mark.parametrize("fast", [True, False], ids=["fast", "asgi"])
Server = Mapping[str, Any]


def raw(**headers: str) -> bytes:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return request(INFER, ROW, headers={**RAW, **fields})


async def answers(fast: bool, server: Server, *sent: bytes) -> list[RawAnswer]:
    """The answers to these requests on one connection."""
    async with (
        edge(Affine, server=server) as it,
        serving(it, fast=fast) as site,
        calling(site) as caller,
    ):
        found = []
        for one in sent:
            await caller.send(one)
            found.append(await caller.answer(has_body=not one.startswith(b"HEAD")))
        return found


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="batchpool")
    return caplog


def peers(log: pytest.LogCaptureFixture) -> list[str]:
    """The callers' addresses in the access log."""
    lines = [record.args for record in log.records if record.name == "batchpool.access"]
    return [line["peer"] for line in lines if isinstance(line, Mapping)]


TRUSTED = {"access_log": "all", "forwarded_allow_ips": ["127.0.0.1"]}


@both_roads
@on_loop
async def test_behind_a_trusted_proxy_each_request_has_its_own_caller(
    fast: bool, log: pytest.LogCaptureFixture
) -> None:
    sent = [raw(X_Forwarded_For=f"203.0.113.{last}") for last in (1, 2, 2, 1, 1)]

    async def scenario(it: Visit) -> None:
        for one in [*sent, raw()]:
            it.feed([one])
            await it.take()

    found = await over(fast, scenario, Affine, server=TRUSTED)
    assert found.known == (3 if fast else 0), "equal heads have equal callers"
    assert peers(log) == [f"203.0.113.{last}" for last in (1, 2, 2, 1, 1)] + ["127.0.0.1"]


@both_roads
@on_loop
async def test_nobody_is_believed_unless_the_configuration_says_so(
    fast: bool, log: pytest.LogCaptureFixture
) -> None:
    for allowed in ([], ["10.0.0.0/8"], ["unix:"]):
        server = {"access_log": "all", "forwarded_allow_ips": allowed}
        await answers(fast, server, raw(X_Forwarded_For="203.0.113.1"))
    assert peers(log) == ["127.0.0.1"] * 3


@both_roads
@on_loop
async def test_the_flow_is_the_callers(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from batchpool.frontend.http.caller import flow_of, flow_of_name
    from batchpool.frontend.service.endpoint import Endpoint

    flows = []
    submit = Endpoint.submit

    def noted(self: Endpoint, *arguments: Any, **named: Any) -> Any:
        flows.append(named["flow"])
        return submit(self, *arguments, **named)

    monkeypatch.setattr(Endpoint, "submit", noted)
    far = {"X_Forwarded_For": "203.0.113.1"}
    await answers(fast, TRUSTED, raw(**far), raw(**far), raw(**far, X_Client_Id="a"))
    origin = flow_of(b"203.0.113.1")
    assert flows == [origin, origin, flow_of_name(origin, b"a")]


@on_loop
async def test_a_known_head_means_nothing_after_a_reload() -> None:
    async with (
        edge(Affine, server={}) as it,
        serving(it) as site,
        calling(site) as caller,
    ):
        for _ in range(2):
            await caller.send(raw(Host="old.example"))
            assert (await caller.answer()).status == 200
        (connection,) = site.server.server_state.connections
        assert isinstance(connection, FastProtocol)
        await caller.send(raw(Host="old.example")[:-4])  # its head came before the reload
        await until(lambda: not connection.is_idle(), "the head has come")
        it.pool.session.server["allowed_hosts"] = ("new.example",)
        it.view.learn()
        site.server.learn()
        await caller.send(ROW[-4:])
        assert (await caller.answer()).status == 200
        await caller.send(raw(Host="old.example"))
        assert (await caller.answer()).refused == (400, "invalid_request")
        await caller.send(raw(Host="new.example"))
        assert (await caller.answer()).status == 200


HOSTS = {"allowed_hosts": ["models.example.com", "*.pool.example", "::1"]}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("models.example.com", 200),
        ("MODELS.example.com:8000", 200),
        ("a.pool.example", 200),
        ("a.b.pool.example:1", 200),
        ("pool.example", 400),
        ("xpool.example", 400),
        ("example.com", 400),
        ("models.example.com.evil.com", 400),
        ("[::1]:8000", 200),
        ("127.0.0.1:8000", 400),
    ],
)
@both_roads
@on_loop
async def test_it_is_asked_by_its_own_names_only(fast: bool, host: str, status: int) -> None:
    sent = [raw(Host=host), request("/v2", method="GET", headers={"Host": host})]
    for answer in await answers(fast, HOSTS, *sent):
        assert answer.status == status
        if status == 400:
            assert "allowed_hosts" in answer.object["error"]


@both_roads
@on_loop
async def test_the_host_behind_a_trusted_proxy_is_the_callers(fast: bool) -> None:
    server = {**HOSTS, "forwarded_allow_ips": ["*"]}
    own, other = "a.pool.example", "evil.example"
    for host, forwarded, status in ((own, own, 200), (own, other, 400), (other, own, 400)):
        sent = raw(Host=host, X_Forwarded_Host=forwarded)
        (answer,) = await answers(fast, server, sent)
        assert answer.status == status, "a proxy may pass on what its caller says"
        (answer,) = await answers(fast, HOSTS, sent)
        assert answer.status == (200 if host == own else 400), "nobody is trusted"


@both_roads
@on_loop
async def test_a_page_of_another_site_runs_no_inference(fast: bool) -> None:
    async with (
        edge(Affine) as it,
        serving(it, fast=fast) as site,
        calling(site) as caller,
    ):
        form = {"Content-Type": "text/plain", "Origin": "https://evil.example"}
        for fields in (form, {"Sec-Fetch-Site": "cross-site"}):
            await caller.send(request(INFER, ROW, headers={**RAW, **fields}))
            answer = await caller.answer()
            assert answer.refused == (403, "forbidden")
            assert "cors_origins" in answer.object["error"]
            assert "access-control-allow-origin" not in answer.headers
        for fields in ({}, {"Origin": "http://pool"}, {"Sec-Fetch-Site": "same-origin"}):
            await caller.send(request(INFER, ROW, headers={**RAW, **fields}))
            assert (await caller.answer()).status == 200
        scraped = await it.http.get("/metrics")
        labels = 'code="403",model="affine",reason="forbidden",road="asgi"'
        assert f"batchpool_http_requests_total{{{labels}}} 2.0" in scraped.text


ALLOWED = {"cors_origins": ["https://app.example"]}
PAGE = {"Origin": "https://app.example"}


@both_roads
@on_loop
async def test_answers_to_an_allowed_page_say_so_errors_too(fast: bool) -> None:
    sent = [
        raw(**PAGE),
        request(INFER, b"{", headers=PAGE),
        request("/v2", method="GET", headers=PAGE),
        request("/nothing", method="GET", headers=PAGE),
    ]
    found = await answers(fast, ALLOWED, *sent)
    assert [answer.status for answer in found] == [200, 400, 200, 404]
    for answer in found:
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "origin" in answer.headers["vary"]
        assert "inference-header-content-length" in answer.headers["access-control-expose-headers"]
    (other,) = await answers(fast, ALLOWED, raw(Origin="https://evil.example"))
    assert other.refused == (403, "forbidden")
    assert "access-control-allow-origin" not in other.headers
    (anybody,) = await answers(fast, {"cors_origins": ["*"]}, raw(Origin="https://evil.example"))
    assert (anybody.status, anybody.headers["access-control-allow-origin"]) == (200, "*")


def preflight(origin: str, **fields: str) -> bytes:
    asked = {name.replace("_", "-"): value for name, value in fields.items()}
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST", **asked}
    return request(INFER, method="OPTIONS", headers=asked)


@both_roads
@on_loop
async def test_a_browser_asks_before_it_sends(fast: bool) -> None:
    wanted = {"Access_Control_Request_Headers": "authorization,x-request-id"}
    (good,) = await answers(fast, ALLOWED, preflight("https://app.example", **wanted))
    assert good.status == 200
    assert good.headers["access-control-allow-origin"] == "https://app.example"
    assert "post" in good.headers["access-control-allow-methods"]
    assert good.headers["access-control-allow-headers"] == "authorization,x-request-id"
    (bad,) = await answers(fast, ALLOWED, preflight("https://evil.example", **wanted))
    assert bad.refused == (403, "forbidden")
    assert "cors_origins" in bad.object["error"]
    assert "access-control-allow-origin" not in bad.headers
    (off,) = await answers(fast, {}, preflight("https://app.example"))
    assert off.status == 405


@on_loop
async def test_the_api_is_described_as_its_caller_addresses_it() -> None:
    async def url(server: Server, **headers: str) -> str:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = request("/openapi.json", method="GET", headers=fields)
        (answer,) = await answers(True, server, sent)
        return str(json.loads(answer.body)["servers"][0]["url"])

    far = {"X_Forwarded_Proto": "https", "X_Forwarded_Host": "a.b", "X_Forwarded_Prefix": "/m"}
    assert await url({}, Host="gpu:9", **far) == "http://gpu:9"
    assert await url(TRUSTED, Host="gpu:9", **far) == "https://a.b/m"
    assert await url({"root_path": "/own"}, Host="gpu:9") == "http://gpu:9/own"


@on_loop
async def test_paths_are_found_with_and_without_the_prefix() -> None:
    server = {"root_path": "/own"}
    paths = ["/v2", "/own/v2", "/own/v2/health/live", "/other/v2"]
    sent = [request(path, method="GET") for path in paths]
    sent.append(request("/own" + INFER, ROW, headers=RAW))
    found = await answers(True, server, *sent)
    assert [answer.status for answer in found] == [200, 200, 200, 404, 200]


@on_loop
async def test_viewers_of_the_page_are_counted_by_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def full(address: str) -> None:
        seen.append(address)
        raise Overloaded("no place")

    async with edge(Affine, server=TRUSTED) as it:
        monkeypatch.setattr(it.broadcaster, "join", full)
        for caller in ("203.0.113.1", "203.0.113.2"):
            headers = {"X-Forwarded-For": caller}
            assert (await it.http.get("/events", headers=headers)).status_code == 503
    assert seen == ["203.0.113.1", "203.0.113.2"]
