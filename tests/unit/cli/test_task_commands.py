"""`batchpool tasks` and `batchpool dlq`, asked of a task process that is made up here."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
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
from batchpool.core.errors import NotReady
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
        tasks = (TaskForm("t_9", "queued", "ranker"),)

        def __init__(self, pool_socket: str) -> None:
            pass

        def __enter__(self) -> Questions:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def ask(self, message: Any, reply: type) -> Any:
            match message:
                case ListTasks():
                    return TaskList(self.tasks)
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


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("tasks", "arguments are required: {list,show} ("),
        ("tasks show", "tasks show: expected the id of a task"),
        ("tasks list pool.toml", "list takes no 'pool.toml': --config pool.toml names"),
        ("dlq", "arguments are required: {list,show,export,replay,drop} ("),
        ("dlq list 17", "list takes no '17'"),
        ("dlq list pool.toml", "'pool.toml' is not the number of a letter; --config names"),
        ("dlq show", "dlq show: expected numbers of letters, or --all"),
        ("dlq replay", "dlq replay: expected numbers of letters, or --all"),
        (f"dlq drop {2**64}", f"'{2**64}' is not the number of a letter"),
        ("dlq show 1_0", "'1_0' is not the number of a letter"),
        ("dlq export", "dlq export: expected numbers of letters, or --all"),
        ("dlq drop 17 --model ranker", "dlq drop: numbers name them; --model has no effect then"),
        ("dlq show 17 --code model_error", "dlq show: numbers name them; --code has no effect"),
        ("dlq replay --all -n 5", "dlq replay: -n counts the lines of list; leave it out"),
        ("tasks show t_9 --state done", "tasks show: ids name them; --state has no effect then"),
        ("tasks show t_9 -n 5", "tasks show: -n counts the lines of list; leave it out"),
        ("dlq drop 17 --all", "dlq drop: expected numbers of letters or --all, not both"),
    ],
)
def test_wrong_usage_is_refused_before_anybody_is_asked(
    words: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words.split()) == 2
    assert text in capsys.readouterr().err


def test_all_letters_are_shown_and_replayed(
    letters: dict[int, LetterForm], capsys: pytest.CaptureFixture[str]
) -> None:
    letters.update({n: letter(n, b"a") for n in (2, 1)})
    assert cli.main(["dlq", "show", "--all"]) == 0
    assert capsys.readouterr().out.count("t_") == 2
    assert cli.main(["dlq", "list", "-n", "1", "--all", "--json"]) == 0
    assert [row["letter"] for row in json.loads(capsys.readouterr().out)] == [2, 1]
    assert cli.main(["dlq", "replay", "--all"]) == 0
    assert capsys.readouterr() == ("2  t_new2\n1  t_new1\n", "replayed 2\n")
    assert cli.main(["dlq", "replay", "--all", "--model", "other"]) == 0
    assert capsys.readouterr() == ("", "replayed 0\n")
    assert cli.main(["dlq", "drop", "--all", "--model", "other"]) == 0
    assert capsys.readouterr().out == "dropped 0\n"


def test_tasks_are_listed(
    letters: dict[int, LetterForm], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tasks", "list"]) == 0
    assert "t_9" in capsys.readouterr().out


EVIL = "\x1b]0;owned\x07\x1b[2J\nt_0  ranker\u202e \ud800\x9b31m"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\nt_0  ranker\u202e \ud800\x9b31m"


@pytest.mark.parametrize("words", ["dlq list", "dlq show 1", "dlq show --all", "tasks list"])
def test_texts_of_strangers_do_not_steer_the_terminal(
    words: str,
    letters: dict[int, LetterForm],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = {"worker": EVIL, EVIL: 1, "traceback": f"line 1\n\t{EVIL}"}
    letters[1] = msgspec.structs.replace(
        letter(1, b"x"), model=EVIL, code=EVIL, error=EVIL, caller=EVIL, facts=facts
    )
    task = TaskForm("t_9", "failed", EVIL, code=EVIL, error=EVIL)
    monkeypatch.setattr(task_questions.TaskQuestions, "tasks", (task,))
    assert cli.main(words.split()) == 0
    shown = capsys.readouterr().out
    assert all(line.isprintable() for line in shown.split("\n"))
    assert SHOWN in shown
    assert "\nt_0" not in shown


def test_an_error_does_not_steer_the_terminal(
    letters: dict[int, LetterForm],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(*_: object) -> None:
        raise NotReady(EVIL)

    monkeypatch.setattr(task_questions.TaskQuestions, "ask", refuses)
    assert cli.main(["dlq", "list"]) == 1
    line = capsys.readouterr().err
    assert line.rstrip("\n").isprintable()
    assert r"\x1b]0;owned\x07\x1b[2J" in line


@pytest.mark.parametrize(
    "words", [("tasks", "show", "t_\udcff"), ("dlq", "list", "--model", "\udcff")]
)
def test_words_that_are_no_text_are_refused_in_a_line(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A word of a command line may be any bytes."""
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(f"{tmp_path}/s.tasks")
        listener.listen()
        assert cli.main([*words, "--socket", f"{tmp_path}/s"]) == 1
    assert "this cannot be asked: 'utf-8' codec can't encode" in capsys.readouterr().err


def test_a_letter_that_cannot_be_read_hides_no_other(
    letters: dict[int, LetterForm], capsys: pytest.CaptureFixture[str]
) -> None:
    letters[2] = msgspec.structs.replace(letter(2), input=b"\xc1", submitted_ms=10**18)
    letters[1] = letter(1, b"good")
    for words in (["dlq", "show", "--all"], ["dlq", "export", "--all"]):
        assert cli.main(words) == 0
        shown = capsys.readouterr().out
        assert '{"unreadable": "' in shown
        assert '"data": ["good"]' in shown
        assert "1000000000000000000 ms" in shown
