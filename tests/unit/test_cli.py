"""The command line: what each command prints, its exit status, and its one-line errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from batchpool import cli
from batchpool.core.config import ModelConfig
from batchpool.core.errors import StartError
from batchpool.core.layout import lane_layout
from batchpool.core.manual import example_toml
from batchpool.core.tensors import ModelSpec, Tensor
from batchpool.pool import described, plan, survey
from batchpool.pool.activation import Activated
from batchpool.pool.described import Described
from batchpool.pool.notify import Notifier
from batchpool.pool.plan import Plan
from batchpool.shm import limits

ROOT = Path(__file__).parents[2]
SPEC = ModelSpec(
    "affine", "numpy", (Tensor("x", "float32", (4,)),), (Tensor("y", "float32", (4,)),)
)


@pytest.fixture(autouse=True)
def nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are described without a child process; a name with "bad" in it cannot be loaded."""

    def describe(import_name: str, *args: object) -> Described:
        if "bad" in import_name:
            raise StartError(f"model {import_name}: ValueError: no weights")
        return Described(import_name, SPEC, cuda=False)

    monkeypatch.setattr(survey, "describe", describe)
    monkeypatch.setattr(described, "describe", describe)
    monkeypatch.setattr(survey, "available_cores", lambda: 2)
    for name in ("CUDA_VISIBLE_DEVICES", "RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that reached the supervisor, which ends at once with status 0."""
    plans: list[Plan] = []

    def run(whole: Plan, notifier: Notifier, activated: Activated, words: Sequence[str]) -> int:
        assert words[0] == "serve"
        assert not notifier
        assert activated == Activated()
        plans.append(whole)
        return 0

    supervisor = ModuleType("batchpool.pool.supervisor")
    supervisor.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "batchpool.pool.supervisor", supervisor)
    monkeypatch.setattr("batchpool.pool.supervisor", supervisor, raising=False)
    return plans


def status_of(argv: list[str]) -> object:
    """The exit status of the program; argparse leaves by SystemExit."""
    try:
        return cli.main(argv)
    except SystemExit as exc:
        return exc.code


def config_file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "pool.toml"
    path.write_text(text)
    return str(path)


def test_serve_without_anything_serves_the_example_and_says_so(
    served: list[Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve"]) == 0
    (whole,) = served
    assert [model.config for model in whole.models] == [
        ModelConfig(import_name="batchpool.examples.affine:Affine", devices="cpu")
    ]
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "no model given: the example batchpool.examples.affine:Affine on the CPU\n"


def test_serve_with_models_and_flags(
    served: list[Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["serve", "--model", "a:B", "--port", "9000", "--max-batch", "8", "--name=one"]
    assert cli.main(argv) == 0
    (whole,) = served
    assert whole.server.port == 9000
    (model,) = whole.models
    assert model.config == ModelConfig(import_name="a:B", name="one", max_batch=8)
    assert model.spec.name == "one"
    assert capsys.readouterr().err == ""


def test_serve_with_a_file_more_models_and_flags(served: list[Plan], tmp_path: Path) -> None:
    path = config_file(
        tmp_path,
        '[server]\nport = 9000\n[[model]]\nimport = "a:B"\nname = "b"\nmax_batch = 8\n'
        '[[model]]\nimport = "a:C"\nname = "c"\nmax_batch = 9\n',
    )
    assert cli.main(["serve", path, "--model", "a:D", "--max-wait-ms", "3"]) == 0
    (whole,) = served
    assert whole.server.port == 9000
    assert [(m.config.import_name, m.config.max_batch) for m in whole.models] == [
        ("a:B", 8),
        ("a:C", 9),
        ("a:D", 64),
    ]
    assert {model.config.max_wait_ms for model in whole.models} == {3.0}


def test_the_exit_status_of_serve_is_the_supervisor_s(
    served: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["batchpool.pool.supervisor"], "run", lambda *_: 7)
    assert cli.main(["serve"]) == 7


def test_check_prints_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--model", "a:B", "--port", "9000", "--socket", "/s"]) == 0
    out = capsys.readouterr().out
    lane_bytes = lane_layout(SPEC, 4096).total_bytes
    assert out.startswith("model affine: a:B, numpy\n  workers        1: cpu\n")
    assert f"  lane           {limits.size_text(lane_bytes)}\n" in out
    assert "  url            http://127.0.0.1:9000\n  socket         /s\n" in out


def test_too_little_memory_is_told_after_the_plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], served: list[Plan]
) -> None:
    room = [limits.Limit("/dev/shm size", 1 << 16)]
    monkeypatch.setattr(limits, "read_limits", lambda: room)
    for command in ("check", "serve"):
        assert cli.main([command, "--model", "a:B"]) == 1
        out, err = capsys.readouterr()
        assert err.startswith("batchpool: error: shared memory: needs ")
        assert "but only 64.0 KiB are available (limit: /dev/shm size)" in err
        assert err.count("\n") == 1
        assert out.startswith("model affine") == (command == "check")
    assert served == []


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        ([], 2, "the following arguments are required: COMMAND (see batchpool --help)"),
        (["serve", "--prot", "1"], 2, 'unknown argument --prot; did you mean "--port"?'),
        (["serve", "--max-bacth=1"], 2, 'unknown argument --max-bacth=1; did you mean "--max-b'),
        (["serve", "a.toml", "b.toml"], 2, "unknown argument b.toml (see batchpool --help)"),
        (["serve", "--port", "http"], 2, "--port http: expected a whole number from 1 to 65535"),
        (["serve", "--model", "scale.py"], 2, '--model "scale.py": expected MODULE:CLASS'),
        (["serve", "--model", "a:B", "--model", "a:B"], 2, '[[model]]: import = "a:B" stands 2'),
        (
            ["check", "--model", "a:B", "--model", "a:C"],
            2,
            "models a:B and a:C are both named 'affine'",
        ),
        (["check", "/no/such.toml"], 2, "cannot read /no/such.toml: No such file or directory"),
        (["check", "/"], 2, "cannot read /: Is a directory"),
        (["check", "--model", "bad:B"], 1, "model bad:B: ValueError: no weights"),
        (["layout", "bad:B"], 1, "model bad:B: ValueError: no weights"),
        (["layout", "x"], 2, 'model "x": expected MODULE:CLASS, as "my_models:Scale"'),
        (["layout", "a:B", "--slots", "-1"], 2, "slots = -1: expected a whole number of rows"),
        (["status", "--batches", "0"], 2, "argument --batches: '0'; expected a number from 1"),
        (["status", "--port", "0"], 2, "port = 0: expected a whole number from 1 to 65535"),
    ],
)
def test_an_error_is_one_line_and_an_exit_status(
    argv: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(argv) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"batchpool: error: {message}")
    assert err.count("\n") == 1


def test_mistakes_in_a_file_name_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config_file(tmp_path, "[server]\nprot = 1\n")
    assert cli.main(["serve", path]) == 2
    assert capsys.readouterr().err == (
        f'batchpool: error: {path}: [server]: unknown key prot = 1; did you mean "port"?\n'
    )
    path = config_file(tmp_path, "[server]\nport = 1\n")
    assert cli.main(["serve", path]) == 2
    assert capsys.readouterr().err == (
        f"batchpool: error: {path}: no [[model]] in it, and no --model given\n"
    )
    Path(path).write_bytes(b"\xff\xfe")
    assert cli.main(["serve", path]) == 2
    assert f"{path}: not UTF-8 text: invalid start byte at byte 0\n" in capsys.readouterr().err


def test_layout_draws_a_lane(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["layout", "a:B", "--slots", "100"]) == 0
    assert capsys.readouterr().out == lane_layout(SPEC, 100).drawing() + "\n"
    assert cli.main(["layout", "a:B"]) == 0
    drawn = lane_layout(SPEC, plan.auto_slots(SPEC, 64)).drawing()
    assert capsys.readouterr().out == drawn + "\n"


def test_config_prints_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config"]) == 0
    assert capsys.readouterr().out == example_toml()


def test_an_interrupt_has_its_own_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> Described:
        raise KeyboardInterrupt

    monkeypatch.setattr(survey, "describe", interrupted)
    assert cli.main(["check"]) == 130


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
    done = run("check", "--port", "8123")
    assert (done.returncode, done.stderr) == (
        0,
        "no model given: the example batchpool.examples.affine:Affine on the CPU\n",
    )
    assert done.stdout.startswith("model affine: batchpool.examples.affine:Affine, numpy\n")
    assert "  url            http://127.0.0.1:8123\n" in done.stdout


def test_output_that_cannot_be_written_is_said_in_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "batchpool", "config"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == ("batchpool: error: cannot write the output: No space left on device\n")
