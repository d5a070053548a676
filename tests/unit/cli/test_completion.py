"""The commands about the command line itself: help, version, and completion in a real shell."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from batchpool import cli
from batchpool.cli.completion import SHELLS


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(words) == 0
    return capsys.readouterr().out


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys)
    assert text.startswith("usage: batchpool ")
    assert text == printed(capsys, "--help") == printed(capsys, "help")


def test_help_of_a_command_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "help", "drain")
    assert text.startswith("usage: batchpool drain ")
    assert text == printed(capsys, "drain", "--help")


def test_the_version_has_a_short_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "-V") == printed(capsys, "--version")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("help", "nothing"), "invalid choice: 'nothing' (choose from"),
        (("completion",), "the following arguments are required: shell"),
        (("completion", "csh"), "invalid choice: 'csh' (choose from"),
    ],
)
def test_an_unknown_command_or_shell_is_named(
    words: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    assert error in capsys.readouterr().err


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_flag_is_in_the_script(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = printed(capsys, "completion", shell)
    for word in ("serve", "drain", "completion", "max-wait-ms", "workers-per-device"):
        assert word in script


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("batchpool ch", ["check"]),
        ("batchpool serve --waterm", ["--watermark"]),
        ("batchpool completion f", ["fish"]),
        ("batchpool check pool.t", ["pool.toml"]),
    ],
)
def test_bash_completes(
    line: str, expected: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "pool.toml").write_text("")
    words = line.split()
    ask = (
        f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; COMP_LINE={line!r};"
        f" _shtab_batchpool batchpool {words[-1]} {words[-2]}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    script = printed(capsys, "completion", "bash") + ask
    found = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == expected, found.stderr
