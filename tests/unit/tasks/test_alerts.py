"""The operator's command gets each dead letter once, those of the last minute at the end."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from batchpool.tasks import alerts as alerts_module
from batchpool.tasks.alerts import Alerts, missing_program


def appending(to: Path) -> str:
    program = f"import sys; open({str(to)!r}, 'a').write(sys.stdin.read())"
    return shlex.join([sys.executable, "-S", "-c", program])


def told(to: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in to.read_text().splitlines()]


def test_what_waits_for_its_minute_is_told_at_the_end(tmp_path: Path) -> None:
    now_s = [100.0]

    async def act() -> None:
        alerts = Alerts(appending(tmp_path / "told"), lambda: now_s[0])
        alerts.letter("ranker", "worker_lost")
        alerts.look()
        now_s[0] += 1
        for _ in range(2):
            alerts.letter("ranker", "model_error")
        alerts.look()  # the first still runs, and its minute is not over
        await alerts.end()

    asyncio.run(act())
    first, last = told(tmp_path / "told")
    assert first == {"event": "dead_letters", "count": 1, "models": {"ranker": {"worker_lost": 1}}}
    assert last == {"event": "dead_letters", "count": 2, "models": {"ranker": {"model_error": 2}}}


def test_an_end_without_letters_starts_nothing(tmp_path: Path) -> None:
    asyncio.run(Alerts(appending(tmp_path / "told"), lambda: 0.0).end())
    assert not (tmp_path / "told").exists()


def test_a_command_that_is_not_there_is_logged_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def act() -> None:
        alerts = Alerts("/nowhere/alert", lambda: 0.0)
        alerts.letter("m", "internal")
        await alerts.end()

    asyncio.run(act())
    assert "there is no program /nowhere/alert that this user may start" in caplog.text
    assert "task_alert_command cannot be started" in caplog.text


def test_a_program_that_is_there_and_no_command_are_no_fault() -> None:
    assert missing_program("") == missing_program(shlex.join([sys.executable, "a b"])) == ""


def test_a_stop_does_not_wait_long_for_a_command_that_hangs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def hang(self: Alerts, message: bytes) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(alerts_module, "_AT_END_S", 0.0)
    monkeypatch.setattr(Alerts, "_run", hang)

    async def act() -> None:
        alerts = Alerts("cat", lambda: 0.0)
        alerts.letter("m", "internal")
        alerts.look()
        alerts.letter("m", "internal")
        await alerts.end()

    asyncio.run(act())
    assert "the latest dead letters are told to nobody" in caplog.text
