"""`batchpool tasks` and `batchpool dlq`, asked of a task process that is made up here."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from batchpool import cli
from batchpool.client import task_questions
from batchpool.control.task_messages import (
    DropLetters,
    LetterForm,
    Letters,
    LettersChanged,
    ListLetters,
    ListTasks,
    ReplayLetters,
    TaskForm,
    TaskList,
)
from batchpool.core.tensors.rows import Rows
from batchpool.wire.task_form import pack_input


def letter(number: int, *texts: bytes) -> LetterForm:
    rows = Rows(len(texts), {"text": np.array(texts, dtype=object)}, {})
    return LetterForm(
        number, f"t_{number}", "ranker", "model_error", "no", 3, len(texts), 1, 2, "me", {},
        pack_input(rows),
    )  # fmt: skip


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> dict[int, LetterForm]:
    """The dead letters that are kept, the newest first."""
    kept: dict[int, LetterForm] = {}

    class Questions:
        def __init__(self, pool_socket: str) -> None:
            pass

        def __enter__(self) -> Questions:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def ask(self, message: Any, reply: type) -> Any:
            match message:
                case ListTasks():
                    return TaskList((TaskForm("t_9", "queued", "ranker"),))
                case ListLetters(model=model, before=before, most=most):
                    found = [
                        form for n, form in kept.items()
                        if (not before or n < before) and model in ("", form.model)
                    ]  # fmt: skip
                    return Letters(tuple(found[:most]))
                case ReplayLetters():
                    return LettersChanged({n: f"t_new{n}" for n in message.letters})
                case DropLetters():
                    return LettersChanged(dict.fromkeys(message.letters, ""))
            raise AssertionError(message)

    monkeypatch.setattr(task_questions, "TaskQuestions", Questions)
    return kept


def test_show_cuts_a_long_input_and_export_does_not(
    letters: dict[int, LetterForm], capsys: pytest.CaptureFixture[str]
) -> None:
    letters[1] = letter(1, b"\xff" * 300_000)
    assert cli.main(["dlq", "show", "1"]) == 0
    shown = capsys.readouterr().out
    assert '"data": [{"b64": "////' in shown
    assert "characters; dlq export, or --json, prints all)" in shown
    assert len(shown) < 5000
    assert cli.main(["dlq", "export", "1"]) == 0
    exported = json.loads(capsys.readouterr().out)
    assert exported["input"]["inputs"]["text"]["data"] == [{"b64": "/" * 400_000}]
