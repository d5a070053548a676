"""`batchpool reload` says how far the reload is while it waits."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from batchpool import cli
from batchpool.cli import reload_progress
from batchpool.client import control
from batchpool.core.errors import PoolStopped

PATIENCE_S = 60


@pytest.mark.parametrize("done", [True, False])
def test_each_state_is_told_once_while_the_reload_lasts(
    done: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    states: list[Any] = [None, "reading", "reading", PoolStopped("gone"), "0 of 2", "1 of 2"]
    asked, all_told = iter(states), threading.Event()

    def ask_status(path: str) -> dict[str, Any]:
        assert path == "/the.sock"
        state = next(asked, "over")
        if state == "over":  # the states before it are printed
            all_told.set()
            return {"reload": None}
        if isinstance(state, PoolStopped):
            raise state
        return {"reload": state}

    def ask_reload(path: str, *, wait: bool) -> tuple[bool, str]:
        assert (path, wait) == ("/the.sock", True)
        assert all_told.wait(PATIENCE_S)
        return done, "of both models"

    monkeypatch.setattr(reload_progress, "_POLL_S", 0.001)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(control, "ask_status", ask_status)
    monkeypatch.setattr(control, "ask_reload", ask_reload)
    assert cli.main(["reload", "--socket", "/the.sock"]) == (0 if done else 1)
    said = capsys.readouterr()
    told = [line for line in said.err.splitlines() if line.startswith("reloading")]
    assert told == ["reloading: reading", "reloading: 0 of 2", "reloading: 1 of 2"]
    assert ("reload of both models" in said.out) is done


@pytest.mark.parametrize(
    ("words", "terminal"), [(["--no-wait"], True), ([], False)], ids=["no-wait", "no-terminal"]
)
def test_nothing_is_told_where_nobody_waits_at_a_terminal(
    words: list[str],
    terminal: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = threading.Event()

    def ask_status(path: str) -> dict[str, Any]:
        asked.set()
        return {"reload": "reading"}

    monkeypatch.setattr(reload_progress, "_POLL_S", 0.001)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setattr(control, "ask_status", ask_status)
    monkeypatch.setattr(control, "ask_reload", lambda path, *, wait: (True, "of a model"))
    assert cli.main(["reload", *words, "--socket", "/the.sock"]) == 0
    assert capsys.readouterr() == ("reload of a model\n", "")
    assert not asked.is_set()
