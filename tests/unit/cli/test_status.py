"""`batchpool status`: the state of the pool, and its last batches, as tables and as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from batchpool import cli
from batchpool.cli.status import in_tables
from batchpool.core.errors import PoolStopped

STATUS: dict[str, Any] = {
    "state": "ready",
    "uptime_s": 12.3456,
    "models": {
        "affine": {
            "ready": True,
            "fill": 0.25,
            "reasons": {"FULL": 2, "IDLE": 8},
            "admitted": 5,
            "http": {"200": 4, "503": 1},
            "queue_p50_ms": 1.5,
            "options": {},
        },
        "minilm": {"ready": False, "fill": 0.0, "admitted": 0, "queue_p50_ms": None},
    },
    "processes": {"batcher": 17, "supervisor": {"pid": 16}},
    "clients": [],
}


BATCHES: list[dict[str, Any]] = [
    {"age_s": 2.5, "model": "affine", "rows": 3, "ran_ms": 0.5},
    {"age_s": 0.25, "model": "affine", "rows": 64, "ran_ms": None},
]


class TestStatus:
    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        paths: list[str] = []

        def ask_status(path: str) -> dict[str, Any]:
            paths.append(path)
            if path == "/stopped":
                raise PoolStopped("no pool listens at /stopped")
            if path == "/forbidden":
                raise PermissionError(13, "Permission denied")
            return STATUS

        control = ModuleType("batchpool.client.control")
        control.ask_status = ask_status  # type: ignore[attr-defined]
        control.ask_batches = lambda path, n: BATCHES[-n:]  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "batchpool.client.control", control)
        return paths

    def test_as_a_table(self, asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["status", "--socket", "/s"]) == 0
        assert capsys.readouterr().out == (
            "state     ready\n"
            "uptime_s  12.35\n"
            "\n"
            "models\n"
            "  name    ready  fill  reasons\n"
            "  affine  yes    0.25  FULL 2, IDLE 8\n"
            "  minilm  no     0     -\n"
            "\n"
            "counts\n"
            "  name    admitted  http\n"
            "  affine  5         200 4, 503 1\n"
            "  minilm  0         -\n"
            "\n"
            "times\n"
            "  name    queue_p50_ms\n"
            "  affine  1.5\n"
            "  minilm  -\n"
            "\n"
            "processes\n"
            "  name        value  pid\n"
            "  batcher     17     -\n"
            "  supervisor  -      16\n"
            "\n"
            "clients\n"
            "  none\n"
        )
        assert asked == ["/s"]

    def test_as_json(self, asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["status", "--socket", "/s", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == STATUS

    def test_the_last_batches(self, asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["status", "--batches", "--socket", "/s"]) == 0
        assert capsys.readouterr().out == (
            "batches\n"
            "  age_s  model   rows  ran_ms\n"
            "  2.5    affine  3     0.5\n"
            "  0.25   affine  64    -\n"
        )
        assert cli.main(["status", "--batches", "1", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == BATCHES[1:]
        assert asked == [], "its account is not asked for besides"

    def test_the_socket_follows_file_port_and_flag(
        self, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/x")
        path = str(tmp_path / "batchpool.toml")
        Path(path).write_text("[server]\nport = 9000\n")
        for argv in ([], ["--port", "7000"], [path], [path, "--socket", "/s"]):
            assert cli.main(["status", *argv]) == 0
        assert asked == [
            "/run/x/batchpool.sock",
            "/run/x/batchpool-7000.sock",
            "/run/x/batchpool-9000.sock",
            "/s",
        ]

    def test_nobody_answers(self, asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["status", "--socket", "/stopped"]) == 1
        assert capsys.readouterr().err == "batchpool: error: no pool listens at /stopped\n"
        assert cli.main(["status", "--socket", "/forbidden"]) == 1
        assert capsys.readouterr().err == (
            "batchpool: error: no pool answers at /forbidden: [Errno 13] Permission denied\n"
        )


def test_options_stand_in_the_table_of_models() -> None:
    models = {"a": {"ready": True, "options": {"path": "x", "k": 1}}, "b": {"options": {}}}
    shown = in_tables({"models": models})["models"]
    assert shown == {"a": {"ready": True, "options": 'path = "x", k = 1'}, "b": {"options": None}}
    del models["a"]
    assert in_tables({"models": models})["models"] == {"b": {}}


def test_the_stages_of_a_model_have_a_table_with_a_line_each() -> None:
    stages = {
        "preprocess": {"workers": "2/2", "queued": 3},
        "infer": {"workers": "1/1", "queued": 0},
    }
    models = {"minilm": {"workers": "1/1", "stages": stages}, "affine": {"workers": "1/1"}}
    shown = in_tables({"models": models})
    assert shown["stages"] == {
        "preprocess of minilm": stages["preprocess"], "infer of minilm": stages["infer"],
    }  # fmt: skip
    assert "stages" not in shown["models"]["minilm"]
    assert "stages" not in in_tables({"models": {"affine": {"workers": "1/1"}}})
