"""`batchpool reload` and `batchpool drain` without a pool: what they say, and how they end."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchpool import cli


@pytest.mark.parametrize(
    "words",
    [["reload"], ["reload", "--no-wait"], ["reload", "--cancel"], ["drain"], ["drain", "--undo"]],
)
def test_nobody_listens(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "nobody.sock"
    assert cli.main([*words, "--socket", str(path)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        f"batchpool: error: no pool listens at {path}: there is no such socket;"
        " is the server running?\n"
    )


@pytest.mark.parametrize(
    ("command", "texts"),
    [
        ("reload", ("--no-wait", "all old ones serve on", "restart the service", "1  failed")),
        ("drain", ("--timeout-s N", "--undo", "stays 200", "1  rows were still under way")),
    ],
)
def test_the_help_teaches(
    command: str, texts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    for text in (*texts, "examples:", "exit status:"):
        assert text in shown


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "soon", "1e9"])
def test_a_wrong_length_of_time_touches_no_pool(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["drain", f"--timeout-s={text}", "--socket", str(tmp_path / "no.sock")]
    assert cli.main(words) == 2
    assert f"'{text}' is not a number of seconds from 0 to 86400" in capsys.readouterr().err
