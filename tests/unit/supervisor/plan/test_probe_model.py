"""A model is described by a child process, whatever its module does when it is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from batchpool.core.config.options import OptionText
from batchpool.core.config.schema import ModelConfig
from batchpool.core.errors import ConfigError, StartError
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.supervisor.plan.probe_model import ProbedModel, probe_model

ROOT = Path(__file__).parents[4]
COMMAND = (
    sys.executable,
    "-c",
    "import sys; from batchpool.worker.describe import main; sys.exit(main(sys.argv[1:]))",
)
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}

MODEL = """
from batchpool.core.tensors.spec import Dim, Tensor
from batchpool.model import Model

class Scale(Model):

    def infer(self, batch): ...
    framework = "numpy"
    inputs = [Tensor("x", "float32", (Dim(8, "k"), 2)), Tensor("text", "bytes", (), max_bytes=9)]
    outputs = [Tensor("y", "float32", (Dim(8, "k"),))]
    parameters = [Tensor("top_k", "int64", (), default=5)]
"""
SCALE = ModelSpec(
    "scale",
    "numpy",
    (Tensor("x", "float32", (Dim(8, "k"), 2)), Tensor("text", "bytes", (), max_bytes=9)),
    (Tensor("y", "float32", (Dim(8, "k"),)),),
    (Tensor("top_k", "int64", (), default=5),),
)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory for the models of a test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ask(import_name: str, timeout_s: float = 60) -> ProbedModel:
    return probe_model(ModelConfig(import_name), ENV, timeout_s, COMMAND)


def refusal(import_name: str, timeout_s: float = 60) -> str:
    with pytest.raises((StartError, ConfigError)) as caught:
        ask(import_name, timeout_s)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_spec_arrives_whole(models: Path) -> None:
    (models / "my_models.py").write_text(MODEL)
    assert ask("my_models:Scale") == ProbedModel(
        "my_models:Scale", SCALE, cuda=False, of_class=True
    )


def test_noise_on_every_stream_does_not_hide_the_answer(models: Path) -> None:
    noise = """
import atexit, os, sys
print("python noise")
os.write(1, b"noise of a C library")
print("more", file=sys.stderr)
atexit.register(print, "noise at exit")
"""
    (models / "loud.py").write_text(noise + MODEL)
    assert ask("loud:Scale").spec == SCALE


@pytest.mark.parametrize(
    "does",
    [
        "sys.stdout = sys.stderr = None",
        "sys.stdout = open(os.devnull, 'w'); sys.stdout.close()",
        "logging.disable(logging.CRITICAL); logging.shutdown()",
    ],
)
def test_a_module_that_takes_the_streams_away_is_described(models: Path, does: str) -> None:
    (models / "bare.py").write_text(f"import logging, os, sys\n{does}\n{MODEL}")
    assert ask("bare:Scale").spec == SCALE


def test_what_a_module_printed_before_it_ended_the_process_is_told(models: Path) -> None:
    (models / "prints.py").write_text("import os\nprint('no licence')\nos._exit(3)\n")
    env = {name: value for name, value in ENV.items() if name != "PYTHONUNBUFFERED"}
    with pytest.raises(StartError, match="exit status 3; its last line: no licence"):
        probe_model(ModelConfig("prints:X"), env, 60, COMMAND)


def test_threads_and_children_left_behind_do_not_delay_the_answer(models: Path) -> None:
    lingering = """
import subprocess, threading
threading.Thread(target=threading.Event().wait).start()
child = subprocess.Popen(["sleep", "600"])
open("child.pid", "w").write(str(child.pid))
"""
    (models / "lingers.py").write_text(lingering + MODEL)
    try:
        assert ask("lingers:Scale", timeout_s=60).spec == SCALE
    finally:
        os.kill(int((models / "child.pid").read_text()), 9)


def test_a_class_inside_a_class_and_a_package(models: Path) -> None:
    (models / "deep").mkdir()
    (models / "deep" / "models.py").write_text(MODEL + "\nclass Box:\n    Inner = Scale\n")
    assert ask("deep.models:Box.Inner").spec == SCALE


def test_a_module_that_is_no_regular_file(models: Path) -> None:
    os.mkfifo(models / "piped.py")
    (models / "real.txt").write_text(MODEL)
    (models / "linked.py").symlink_to("real.txt")
    assert refusal("piped:Scale").endswith(f"{models}/piped.py is not a regular file")
    assert ask("linked:Scale").spec == SCALE


def test_what_is_wrong_is_one_line_with_the_place(models: Path) -> None:
    (models / "broken.py").write_text(
        "x = 1\n\ndef f():\n    raise ValueError('no\\nweights')\nf()"
    )
    (models / "syntax.py").write_text("def f(:\n")
    (models / "missing.py").write_text("import not_there_at_all\n")
    (models / "leaves.py").write_text("raise SystemExit('bye')\n")
    (models / "other.py").write_text("Thing = 3\n")
    (models / "empty.py").write_text(
        "from batchpool.model import Model\nclass Nothing(Model):\n    pass\n"
    )
    assert refusal("broken:X") == (f"model broken:X: ValueError: no weights ({models}/broken.py:4)")
    assert "SyntaxError: invalid syntax (syntax.py, line 1)" in refusal("syntax:X")
    assert refusal("missing:X") == (
        "model missing:X: ModuleNotFoundError: No module named 'not_there_at_all'"
        f" ({models}/missing.py:1)"
    )
    assert refusal("leaves:X").startswith("model leaves:X: SystemExit: bye")
    assert refusal("nowhere:X") == (
        "model nowhere:X: ModuleNotFoundError: there is no module 'nowhere' in"
        f" {models}, nor among the installed packages"
    )
    assert refusal("other:Thin") == (
        "model other:Thin: AttributeError: module 'other' has no 'Thin'"
    )
    assert refusal("other:Thing") == (
        "model other:Thing: TypeError: other:Thing is not a subclass of batchpool.Model"
    )
    assert refusal("empty:Nothing") == (
        "model empty:Nothing: model 'nothing': needs at least one input and one output; it has no"
        " input: expected inputs = [bp.Tensor(...), ...]"
    )


def test_a_module_that_ends_the_process_is_reported(models: Path) -> None:
    (models / "exits.py").write_text(
        "import os, sys\nprint('last words', file=sys.stderr, flush=True)\nos._exit(3)\n"
    )
    (models / "killed.py").write_text("import os\nos.kill(os.getpid(), 11)\n")
    assert refusal("exits:X") == (
        "model exits:X: importing it ended the process with exit status 3;"
        " its last line: last words"
    )
    assert refusal("killed:X").startswith(
        "model killed:X: importing it killed the process with SIGSEGV"
    )


def test_a_module_that_hangs_is_given_up(models: Path) -> None:
    (models / "hangs.py").write_text("import threading\nthreading.Event().wait()\n")
    assert refusal("hangs:X", timeout_s=0.5) == ("model hangs:X: importing it took more than 0.5 s")


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_child_dies_with_whoever_asked(models: Path) -> None:
    (models / "hangs.py").write_text(
        "import os, threading\n"
        "open('part', 'w').write(str(os.getpid()))\n"
        "os.rename('part', 'pid')\n"
        "threading.Event().wait()\n"
    )
    code = (
        "from batchpool.core.config.schema import ModelConfig;"
        "from batchpool.supervisor.plan.probe_model import probe_model;"
        f" probe_model(ModelConfig('hangs:X'), command={COMMAND})"
    )
    with subprocess.Popen([sys.executable, "-c", code], env=ENV) as parent:
        wait_until((models / "pid").exists)
        parent.kill()
    child = int((models / "pid").read_text())
    wait_until(lambda: not is_running(child))


def test_torch_models_say_whether_torch_has_cuda(models: Path) -> None:
    torch = pytest.importorskip("torch")
    (models / "m.py").write_text(MODEL.replace('"numpy"', '"torch"'))
    assert ask("m:Scale").cuda is (torch.version.cuda is not None)


@pytest.mark.parametrize(("cuda", "found"), [("'12.8'", True), ("None", False)])
def test_the_cuda_of_another_torch(models: Path, cuda: str, found: bool) -> None:
    (models / "torch").mkdir()
    (models / "torch" / "__init__.py").write_text("from . import version\n")
    (models / "torch" / "version.py").write_text(f"cuda = {cuda}\n")
    (models / "m.py").write_text(MODEL.replace('"numpy"', '"torch"'))
    assert ask("m:Scale").cuda is found


def test_without_torch_a_torch_model_is_refused_clearly(models: Path) -> None:
    blocker = "import sys\nsys.modules['torch'] = None\n"
    (models / "m.py").write_text(blocker + MODEL.replace('"numpy"', '"torch"'))
    assert refusal("m:Scale") == (
        "model m:Scale: ImportError: model 'scale' has framework 'torch', but PyTorch is not"
        ' installed; install batchpool[torch] or set framework = "numpy"'
    )


def test_a_numpy_model_needs_no_torch(models: Path) -> None:
    (models / "m.py").write_text("import sys\nsys.modules['torch'] = None\n" + MODEL)
    assert ask("m:Scale") == ProbedModel("m:Scale", SCALE, cuda=False, of_class=True)


def test_the_role_prints_one_line_and_its_exit_status_says_ok(models: Path) -> None:
    (models / "m.py").write_text("print('noise')\n" + MODEL)
    for name, code in (("m:Scale", 0), ("m:Nope", 1)):
        answer = subprocess.run(
            [*COMMAND, name], env=ENV, capture_output=True, text=True, check=False
        )
        assert answer.returncode == code
        (line,) = answer.stdout.splitlines()
        assert json.loads(line)["ok"] is (code == 0)
        assert "noise" in answer.stderr


def test_options_and_name_reach_the_instance_and_come_back_typed(models: Path) -> None:
    (models / "own.py").write_text(
        MODEL.replace("    framework", "    def __init__(self, k: int): self.k = k\n    framework")
    )
    found = probe_model(
        ModelConfig("own:Scale", "served", {"k": OptionText("5")}), ENV, 60, COMMAND
    )
    assert (found.spec.name, found.options, found.of_class) == ("served", {"k": 5}, False)
    with pytest.raises(
        ConfigError, match=r"^model served \(own:Scale\): option k = \"5\": expected `int`"
    ):
        probe_model(ModelConfig("own:Scale", "served", {"k": "5"}), ENV, 60, COMMAND)


def test_a_torch_model_is_described_without_importing_torch(models: Path) -> None:
    pytest.importorskip("torch")
    late = "import atexit, sys\natexit.register(lambda: print('torch' in sys.modules, file=OUT))\n"
    (models / "m.py").write_text(
        f"OUT = open('seen', 'w')\n{late}{MODEL.replace('numpy', 'torch')}"
    )
    ask("m:Scale")
    assert (models / "seen").read_text() == "False\n"
