"""The command line: what each command prints, its exit status, and its one-line errors."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from batchpool import cli
from batchpool.cli import port_check
from batchpool.cli.reference import example_toml
from batchpool.core.config.schema import ModelConfig
from batchpool.core.errors import StartError
from batchpool.core.layout.segments import lane_layout
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.log import setup
from batchpool.shm import memory_limits
from batchpool.supervisor.host.listen import PortTaken
from batchpool.supervisor.host.port_owners import PortOwner
from batchpool.supervisor.host.sd_notify import Notifier
from batchpool.supervisor.host.signals import Signals
from batchpool.supervisor.host.socket_activation import ActivatedSockets
from batchpool.supervisor.plan import discover, slots
from batchpool.supervisor.plan import probe_model as probe_module
from batchpool.supervisor.plan.plan import Plan
from batchpool.supervisor.plan.probe_model import ProbedModel

ROOT = Path(__file__).parents[3]
SPEC = ModelSpec(
    "affine", "numpy", (Tensor("x", "float32", (4,)),), (Tensor("y", "float32", (4,)),)
)


@pytest.fixture(autouse=True)
def nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are described without a child process; a name with "bad" in it cannot be loaded."""

    def probe_model(model: ModelConfig, *args: object) -> ProbedModel:
        if "bad" in model.import_name:
            raise StartError(f"model {model.import_name}: ValueError: no weights")
        return ProbedModel(model.import_name, SPEC, cuda=False, options=model.options)

    monkeypatch.setattr(discover, "probe_model", probe_model)
    monkeypatch.setattr(probe_module, "probe_model", probe_model)
    monkeypatch.setattr(discover, "available_cores", lambda: 2)
    monkeypatch.setattr(port_check, "try_port", lambda host, port: None)
    monkeypatch.setattr(setup, "set_up", lambda *_: None)  # the log of the tests stays theirs
    for name in ("CUDA_VISIBLE_DEVICES", "RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that reached the supervisor, which ends at once with status 0."""
    plans: list[Plan] = []

    def run(
        whole: Plan, notifier: Notifier, activated: ActivatedSockets, words: Sequence[str]
    ) -> int:
        assert words[0] == "serve"
        assert not notifier
        assert activated == ActivatedSockets()
        plans.append(whole)
        return 0

    supervisor = ModuleType("batchpool.supervisor.supervisor")
    supervisor.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "batchpool.supervisor.supervisor", supervisor)
    monkeypatch.setattr("batchpool.supervisor.supervisor", supervisor, raising=False)
    return plans


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
    monkeypatch.setattr(sys.modules["batchpool.supervisor.supervisor"], "run", lambda *_: 7)
    assert cli.main(["serve"]) == 7


def test_check_prints_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--model", "a:B", "--port", "9000", "--socket", "/s"]) == 0
    out = capsys.readouterr().out
    lane_bytes = lane_layout(SPEC, 4096).total_bytes
    assert out.startswith("model affine: a:B, numpy\n  workers        1: cpu\n")
    assert f"  lane           {memory_limits.size_text(lane_bytes)}\n" in out
    assert "  url            http://127.0.0.1:9000\n  socket         /s\n" in out
    assert out.endswith("\n  port           free\n")


def test_check_tries_the_folder_of_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["check", "--model", "a:B", "--tasks", "--state-dir"]
    assert cli.main([*words, str(tmp_path)]) == 0
    assert list(tmp_path.iterdir()) == []
    assert cli.main([*words, "/proc/nope"]) == 1
    assert "the folder of tasks /proc/nope/tasks cannot be used" in capsys.readouterr().err


OURS = PortOwner(7, ("/usr/bin/batchpool", "serve"))


@pytest.mark.parametrize(
    ("by", "answers", "said"),
    [
        ([OURS], False, "in use (by a running batchpool, pid 7)"),
        ([PortOwner(1, ("/sbin/init",))], False, "in use (held by systemd)"),
        ([], True, "in use (by a running batchpool)"),
        ([], False, ""),
        ([PortOwner(8, ("nginx",))], True, ""),
    ],
)
def test_check_looks_at_the_port(
    by: list[PortOwner],
    answers: bool,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = b'{"name":"batchpool"}' if answers else b'{"name":"another"}'

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/v2" else 404)
            self.send_header("Content-Length", str(len(name)))
            self.end_headers()
            self.wfile.write(name)

        def log_message(self, *_: object) -> None: ...

    def taken(host: str, port: int) -> None:
        raise PortTaken(host, port, by)

    monkeypatch.setattr(port_check, "try_port", taken)
    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        port = server.server_port
        status = cli.main(["check", "--model", "a:B", "--port", str(port)])
        socket.create_connection(("127.0.0.1", port)).close()  # if nobody has asked it
    out, err = capsys.readouterr()
    if said:
        assert (status, err) == (0, "")
        assert out.endswith(f"\n  port           {said}\n")
    else:
        who = by[0].name if by else "another process"
        assert status == 1
        assert err.startswith(f"batchpool: error: port {port} on 127.0.0.1 is taken by {who}; ")
        assert "  port  " not in out


def test_too_little_memory_is_told_after_the_plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], served: list[Plan]
) -> None:
    room = [memory_limits.Limit("/dev/shm size", 1 << 16)]
    monkeypatch.setattr(memory_limits, "read_limits", lambda: room)
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
        (["serve", "--prot", "1"], 2, 'unknown argument --prot; did you mean "--port"?'),
        (["serve", "--max-bacth=1"], 2, 'unknown argument --max-bacth=1; did you mean "--max-b'),
        (["serve", "a.toml", "b.toml"], 2, "unknown argument b.toml (see batchpool serve --help)"),
        (["serve", "--no-paeg"], 2, 'unknown argument --no-paeg; did you mean "--no-page"?'),
        (
            ["run", "a:B", "in.npy", "-o", "out.npy", "--max-batch=3"],
            2,
            "--max-batch=3 is a flag of serve, for the run's own pool: write it behind --",
        ),
        (["serve", "--xyz", "0"], 2, "unknown argument --xyz (see batchpool serve --help)"),
        (["check", "--modle", "a:B"], 2, 'unknown argument --modle; did you mean "--model"?'),
        (["reload", "--wait"], 2, 'unknown argument --wait; did you mean "--no-wait"?'),
        (["drain", "--timeout", "3"], 2, 'unknown argument --timeout; did you mean "--timeout-s"?'),
        (
            ["drain", "--max-batch=3"],
            2,
            "unknown argument --max-batch=3; known: --help, --socket, --port, --timeout-s, --undo"
            " (see batchpool drain --help)",
        ),
        (["status", "--batch", "3"], 2, 'unknown argument --batch; did you mean "--batches"?'),
        (["layout", "a:B", "--slot=3"], 2, 'unknown argument --slot=3; did you mean "--slots"?'),
        (["config", "--jsno"], 2, "unknown argument --jsno; known: --help (see batchpool config"),
        (["sreve"], 2, 'unknown command sreve; did you mean "serve"? (see batchpool --help)'),
        (["xyzzy"], 2, "unknown command xyzzy (see batchpool --help)"),
        (["--verison"], 2, 'unknown option before the command, --verison; did you mean "--vers'),
        (["--port", "1", "serve"], 2, "unknown option before the command, --port; known: --help"),
        (["serve", "--port", "http"], 2, "--port http: expected a whole number from 0 to 65535"),
        (["serve", "--model", "scale.py"], 2, '--model "scale.py": expected MODULE:CLASS'),
        (["serve", "--model", "a:B", "--model", "a:B"], 2, '[[model]]: import = "a:B" stands 2'),
        (
            ["check", "--model", "a:B", "--model", "a:C"],
            2,
            "models a:B and a:C are both named 'affine'",
        ),
        (["check", "/no/such.toml"], 2, "cannot read /no/such.toml: No such file or directory"),
        (
            ["check", "my_models:Scale"],
            2,
            "cannot read my_models:Scale: No such file or directory; a configuration file was"
            " expected: serve and check take --model my_models:Scale",
        ),
        (["check", "/"], 2, "cannot read /: Is a directory"),
        (["check", "--model", "bad:B"], 1, "model bad:B: ValueError: no weights"),
        (["layout", "bad:B"], 1, "model bad:B: ValueError: no weights"),
        (["layout", "x"], 2, 'model "x": expected MODULE:CLASS, as "my_models:Scale"'),
        (["layout", "a:B", "--slots", "-1"], 2, "slots = -1: expected a whole number of rows"),
        (["status", "--batches", "0"], 2, "argument --batches: '0' is not a whole number from 1"),
        (["status", "--port", "0"], 2, "port = 0: expected a TCP port from 1 to 65535, or uds"),
    ],
)
def test_an_error_is_one_line_and_an_exit_status(
    argv: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == status
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


@pytest.mark.parametrize("command", ["serve", "check", "status", "reload", "drain"])
def test_a_configuration_that_would_be_waited_for_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], served: list[Plan]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path in ("/dev/zero", str(tmp_path / "pipe"), str(tmp_path / "link")):
        assert cli.main([command, path]) == 2
        assert capsys.readouterr().err == f"batchpool: error: {path} is not a regular file\n"
    (tmp_path / "good").symlink_to(config_file(tmp_path, "[server]\nport = 1\n"))
    (tmp_path / "gone").symlink_to("nowhere")
    assert cli.main([command, str(tmp_path / "good")]) in (1, 2)
    assert "regular" not in capsys.readouterr().err
    assert cli.main([command, str(tmp_path / "gone")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_layout_draws_a_lane(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["layout", "a:B", "--slots", "100"]) == 0
    assert capsys.readouterr().out == lane_layout(SPEC, 100).drawing() + "\n"
    assert cli.main(["layout", "a:B"]) == 0
    drawn = lane_layout(SPEC, slots.auto_slots(SPEC, 64)).drawing()
    assert capsys.readouterr().out == drawn + "\n"


def test_config_prints_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config"]) == 0
    assert capsys.readouterr().out == example_toml()


def test_an_interrupt_has_its_own_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> ProbedModel:
        raise KeyboardInterrupt

    monkeypatch.setattr(discover, "probe_model", interrupted)
    assert cli.main(["check"]) == 130


def test_a_hangup_in_the_first_moment_is_kept(
    served: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While models are described there is no supervisor yet that could reload."""
    found = []

    def probe_model(model: ModelConfig, *args: object) -> ProbedModel:
        os.kill(os.getpid(), signal.SIGHUP)
        return ProbedModel(model.import_name, SPEC, cuda=False)

    def run(*_: object) -> int:
        signals = Signals()
        found.append(signals.take())
        signals.close()
        return 0

    before = signal.getsignal(signal.SIGHUP)
    monkeypatch.setattr(discover, "probe_model", probe_model)
    monkeypatch.setattr(sys.modules["batchpool.supervisor.supervisor"], "run", run)
    assert cli.main(["serve"]) == 0
    assert found == [[("SIGHUP", True)]]
    assert signal.getsignal(signal.SIGHUP) is before
