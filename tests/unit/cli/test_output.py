"""Output of the command line: help, exit statuses, and output that cannot be written."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batchpool import cli
from batchpool.cli.reference import example_toml

ROOT = Path(__file__).parents[3]


def run(*argv: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "batchpool", *argv],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        **more,
    )


def test_help_teaches() -> None:
    top = run("--help")
    assert top.returncode == 0
    for word in ("serve", "check", "status", "layout", "config", "examples:", "exit status:"):
        assert word in top.stdout
    serve = run("serve", "--help").stdout
    for word in ("--max-wait-ms", "milliseconds", "(default 64)", "--no-idempotent", "examples:"):
        assert word in serve
    assert run("--version").stdout.startswith("batchpool ")


EXITS = {
    "serve": ("stopped as asked", "could not start"),
    "check": ("it could be started", "it could not"),
    "status": ("printed", "nobody answers"),
    "reload": ("done", "failed and nothing changed"),
    "drain": ("every accepted request is answered", "rows were still under way"),
    "layout": ("printed", "the model cannot be loaded"),
    "config": ("printed", "it could not be written"),
}


@pytest.mark.parametrize("command", EXITS)
def test_a_command_tells_of_its_own_exit_statuses(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    _, found, exits = shown.partition("exit status:\n")
    assert found
    good, bad = EXITS[command]
    assert exits.startswith(f"  0  {good}")
    assert f"\n  1  {bad}" in exits
    assert exits.endswith("\n  2  wrong usage or configuration\n")
    for of_other, _ in EXITS.values():
        assert of_other == good or f"  0  {of_other}" not in shown


def test_the_command_line_is_light() -> None:
    code = (
        "import sys, batchpool.cli\n"
        "try: batchpool.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'starlette', 'uvicorn', 'httptools'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m batchpool config | head -n 1; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == example_toml().splitlines()[0] + "\n"


def test_check_for_real() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = str(sock.getsockname()[1])
    done = run("check", "--port", port)
    assert (done.returncode, done.stderr) == (
        0,
        "no model given: the example batchpool.examples.affine:Affine on the CPU\n",
    )
    assert done.stdout.startswith("model affine: batchpool.examples.affine:Affine, numpy\n")
    assert f"  url            http://127.0.0.1:{port}\n" in done.stdout
    assert done.stdout.endswith("\n  port           free\n")


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["--version"],
        ["serve", "--help"],
        ["config"],
        ["check", "--log-format", "json"],
        ["layout", "batchpool.examples.affine:Affine"],
    ],
    ids=" ".join,
)
def test_output_that_cannot_be_written_is_said_in_one_line(argv: list[str]) -> None:
    code = "import sys; from batchpool import cli; sys.exit(cli.main(sys.argv[1:]))"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, *argv],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == ("batchpool: error: cannot write the output: No space left on device\n")


def test_what_is_printed_to_nobody_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m batchpool config >&-",
        shell=True, cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
