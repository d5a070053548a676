"""Callers with keys on both HTTP paths: who is let in, as whom, and what the others are told."""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from batchpool.frontend.http.caller import flow_of_key
from batchpool.frontend.service.endpoint import Endpoint
from tests.unit.frontend.frontend_double import calling, edge, request, serving
from tests.unit.frontend.http.test_gate import INFER, answers, both_roads, raw
from tests.unit.frontend.loops import on_loop
from tests.unit.frontend.models import Affine

NIGHTLY, WEB = "key-of-the-night", "key-of-the-web"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(f"nightly:{NIGHTLY}\nweb:{WEB}\n")
    file.chmod(0o600)
    return file


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("authorization", "reason"),
    [
        ("", "is absent"),
        ("Bearer", "another key"),
        ("Bearer wrong", "another key"),
        (f"Bearer {NIGHTLY}x", "another key"),
        (f"Bearer {NIGHTLY} x", "another key"),
        (NIGHTLY, "no Bearer"),
        (f"Digest {NIGHTLY}", "no Bearer"),
        (basic(f"{NIGHTLY}:"), "another key"),
        ("Basic !", "another key"),
    ],
)
@both_roads
@on_loop
async def test_without_a_key_nothing_runs(
    fast: bool, keys: Path, authorization: str, reason: str
) -> None:
    server = {"api_keys_file": str(keys)}
    (answer,) = await answers(fast, server, raw(Authorization=authorization))
    assert answer.refused == (401, "unauthorized")
    assert answer.headers["www-authenticate"].startswith('bearer realm="batchpool"')
    assert reason in answer.object["error"]
    assert "Bearer KEY" in answer.object["error"]


@both_roads
@on_loop
async def test_a_key_is_its_callers_identity(
    fast: bool,
    keys: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="batchpool")
    flows = []
    submit = Endpoint.submit

    def noted(self: Endpoint, *arguments: Any, **named: Any) -> Any:
        flows.append(named["flow"])
        return submit(self, *arguments, **named)

    monkeypatch.setattr(Endpoint, "submit", noted)
    one, other = f"Bearer {NIGHTLY}", f"bearer  {WEB}"
    sent = [
        raw(Authorization=one),
        raw(Authorization=one),
        raw(Authorization=one, X_Client_Id="another"),
        raw(Authorization=other),
        raw(Authorization=basic(f"anybody:{WEB}")),
    ]
    server = {"api_keys_file": str(keys), "access_log": "all"}
    found = await answers(fast, server, *sent)
    assert [answer.status for answer in found] == [200] * 5
    names = ["nightly"] * 3 + ["web"] * 2
    assert flows == [flow_of_key(name) for name in names]
    lines = [record.args for record in caplog.records if record.name == "batchpool.access"]
    assert [line["key"] for line in lines if isinstance(line, Mapping)] == names
    assert NIGHTLY not in caplog.text


@on_loop
async def test_health_is_open_and_all_else_is_not(keys: Path) -> None:
    server = {"api_keys_file": str(keys), "root_path": "/own"}
    paths = ["/v2/health/live", "/v2/health/ready", "/own/v2/health/ready", "/v2", "/metrics"]
    paths += ["/", "/events", "/docs", "/openapi.json", "/x/v2/health/live"]
    paths += ["/v2/models/affine/ready"]
    sent = [request(path, method="GET") for path in paths]
    found = await answers(True, server, *sent)
    assert [answer.status for answer in found] == [200] * 3 + [401] * 8
    shown = {"Authorization": f"Bearer {WEB}"}
    (metrics,) = await answers(True, server, request("/metrics", method="GET", headers=shown))
    assert metrics.status == 200


@on_loop
async def test_a_browser_is_asked_for_a_password(keys: Path) -> None:
    server = {"api_keys_file": str(keys)}
    page = {"Accept": "text/html,*/*"}
    (asked,) = await answers(True, server, request("/", method="GET", headers=page))
    assert asked.status == 401
    assert asked.headers["www-authenticate"] == 'basic realm="batchpool", charset="utf-8"'
    page["Authorization"] = basic(f"me:{WEB}")
    (shown,) = await answers(True, server, request("/", method="GET", headers=page))
    assert (shown.status, shown.headers["content-type"]) == (200, "text/html; charset=utf-8")


@on_loop
async def test_a_page_of_an_allowed_site_asks_without_a_key_and_sends_with_one(keys: Path) -> None:
    server = {"api_keys_file": str(keys), "cors_origins": ["https://app.example"]}
    page = {"Origin": "https://app.example"}
    ask = {**page, "Access-Control-Request-Method": "POST"}
    ask["Access-Control-Request-Headers"] = "authorization"
    sent = [
        request(INFER, method="OPTIONS", headers=ask),
        raw(**page),
        raw(**page, Authorization=f"Bearer {WEB}"),
    ]
    found = await answers(True, server, *sent)
    assert [answer.status for answer in found] == [200, 401, 200]
    for answer in found:
        assert answer.headers["access-control-allow-origin"] == "https://app.example"


@on_loop
async def test_a_reload_reads_the_keys_again_and_a_known_head_does_not_outlive_its_key(
    keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = {"api_keys_file": str(keys)}
    async with (
        edge(Affine, server=server) as it,
        serving(it) as site,
        calling(site) as caller,
    ):

        async def status(key: str) -> int:
            await caller.send(raw(Authorization=f"Bearer {key}"))
            return (await caller.answer()).status

        assert [await status(NIGHTLY), await status(NIGHTLY)] == [200, 200]
        for text, after in ((f"web:{WEB}\n", 401), ("nonsense\n", 401), (f"n:{NIGHTLY}\n", 200)):
            keys.write_text(text)
            it.view.learn()
            site.server.learn()
            assert await status(NIGHTLY) == after
        assert "stay as they were" in caplog.text
        assert await status(WEB) == 401
