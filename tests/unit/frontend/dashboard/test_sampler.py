"""A front end's own snapshots, of what it really sees."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.frontend.calls import affine
from tests.unit.frontend.dashboard.counted import STATUS
from tests.unit.frontend.dashboard.supervisor_double import Supervisor
from tests.unit.frontend.frontend_double import edge
from tests.unit.frontend.loops import on_loop
from tests.unit.frontend.models import Affine, Two


@on_loop
async def test_what_was_asked_is_seen_in_the_next_snapshot() -> None:
    async with edge(Affine, Two) as it:
        source = it.broadcaster._source
        source.begin()
        first = await source.take()
        assert [model["name"] for model in first["models"]] == ["affine", "two"]
        assert first["models"][0]["requests_per_s"] is None
        assert first["pool"]["state"] == "ready"
        assert "no pool answers" in first["pool"]["why"], "there is no supervisor here"
        for row in range(3):
            assert (
                await it.http.post("/v2/models/affine/infer", json=affine(row))
            ).status_code == 200
        assert (await it.http.post("/v2/models/affine/infer", content=b"{")).status_code == 400
        seen, other = (await source.take())["models"]
        assert seen["requests_per_s"] > 0
        assert seen["latency"]["request"]["p50"] > 0
        assert [(c["code"], c["total"]) for c in seen["codes"]] == [("invalid_request", 1)]
        assert other["requests_per_s"] == 0
        assert json.loads(json.dumps(first)) == first
        source.rest()


@on_loop
async def test_what_a_silent_supervisor_said_last_stays(tmp_path: Path) -> None:
    async with edge(Affine, server={"socket": str(tmp_path / "s")}) as it:
        supervisor = Supervisor(tmp_path / "s")
        source = it.broadcaster._source
        supervisor.answers = [{"op": "status", "status": STATUS}]
        first = await source.take()
        assert first["pool"]["why"] == ""
        assert first["pool"]["url"] == STATUS["url"]
        supervisor.close()
        second = await source.take()
        assert second["pool"]["why"].endswith("; what it said last is 0 s old")
        assert second["processes"] == first["processes"]
        assert second["models"][0]["slots"] == first["models"][0]["slots"]
        source.begin()
        assert (await source.take())["processes"] == []
        source.rest()
