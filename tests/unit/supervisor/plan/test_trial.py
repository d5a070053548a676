"""A model is tried in a process of its own: loaded, warmed up, timed and unloaded."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from batchpool.core.config.schema import Config, ModelConfig
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import StartError
from batchpool.supervisor.plan.discover import discover_plan
from batchpool.supervisor.plan.plan import ModelPlan
from batchpool.supervisor.plan.trial import slow_batch_warning, try_model

MODEL = """
import os, threading, time
import batchpool as bp

class Tried(bp.Model):
    framework = "numpy"
    inputs = [bp.Tensor("x", "float32")]
    outputs = [bp.Tensor("y", "float32")]

    def load(self, device):
        print("loading on", device)
        self.notes = []

    def infer(self, batch):
        self.notes.append(batch.n)
        {infer}
        return {{"y": batch["x"]}}

    def unload(self):
        open("notes", "w").write(f"{{self.notes}} {{os.environ.get('OMP_NUM_THREADS')}}")
"""


SERVER = ServerConfig()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(folder: Path, infer: str = "pass", name: str = "tried", **values: object) -> ModelPlan:
    """The plan of a model whose `infer` does this first."""
    (folder / f"{name}_models.py").write_text(MODEL.format(infer=infer))
    config = ModelConfig(import_name=f"{name}_models:Tried", devices="cpu", **values)  # type: ignore[arg-type]
    return discover_plan(Config(ServerConfig(), (config,)), os.environ).models[0]


def test_a_model_is_loaded_warmed_up_and_unloaded(folder: Path) -> None:
    model = planned(folder, max_batch=8)
    trial = try_model(model, SERVER)
    threads = model.workers[0].settings({}).get("OMP_NUM_THREADS")
    assert (folder / "notes").read_text() == f"[1, 1, 8, 8] {threads}"
    assert (trial.device, trial.warnings) == ("cpu", ())
    assert trial.rows in (1, 8)
    assert 0 < trial.batch_s < trial.load_s
    assert trial.text().startswith("on cpu in ")
    assert f"its slowest batch, of {trial.rows} rows, takes" in trial.text()


def test_the_allowed_sizes_of_a_batch_are_tried(folder: Path) -> None:
    try_model(planned(folder, "pass", "sized", max_batch=4, batch_sizes=(2, 4)), SERVER)
    assert (folder / "notes").read_text().startswith("[2, 2, 4, 4] ")


@pytest.mark.parametrize(
    ("infer", "message"),
    [
        ('raise ValueError("no picture")', "ValueError: no picture; it was the warm-up, .* define"),
        ("os._exit(3)", "loading and warming it up ended the process with exit status 3"),
        ('return {"z": 1}', "'z'"),
    ],
)
def test_a_model_that_cannot_serve_is_told_with_the_reason(
    folder: Path, infer: str, message: str
) -> None:
    name = f"bad{abs(hash(infer)) % 1000}"
    with pytest.raises(StartError, match=rf"^model {name}_models:Tried: .*{message}"):
        try_model(planned(folder, infer, name), SERVER)


def test_the_models_own_output_is_shown_and_its_line_is_named(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The line is the model's that called the library which raised."""
    with pytest.raises(StartError, match=r"JSONDecodeError: .*\(.*deep_models.py:16\)$"):
        try_model(planned(folder, "import json; json.loads('no')", "deep"), SERVER)
    shown = capfd.readouterr().err
    assert "loading on cpu" in shown
    assert "json/decoder.py" in shown, "the whole traceback"


@pytest.mark.parametrize("unload", ["threading.Event().wait()", "1 / 0"])
def test_an_unload_that_hangs_or_raises_is_no_failure_of_the_trial(
    folder: Path, unload: str, capfd: pytest.CaptureFixture[str]
) -> None:
    model = planned(folder, "pass", f"left{len(unload)}")
    file = folder / f"left{len(unload)}_models.py"
    file.write_text(file.read_text().replace('open("notes", "w")', f"{unload}; open('notes', 'w')"))
    trial = try_model(model, ServerConfig(unload_timeout_s=0.5))
    hangs = "wait" in unload
    assert [warning.split(" = ")[0] for warning in trial.warnings] == (
        ["unload did not end within unload_timeout_s"] if hangs else []
    )
    assert ("ZeroDivisionError" in capfd.readouterr().err) != hangs


def test_a_load_that_takes_too_long_is_given_up(folder: Path) -> None:
    model = planned(folder, "threading.Event().wait()", "hung")
    with pytest.raises(StartError, match=r"loading and warming it up took more than 2 s"):
        try_model(model, ServerConfig(load_timeout_s=1.5, unload_timeout_s=0.5))


def test_a_batch_that_may_not_take_so_long_is_warned_of(folder: Path) -> None:
    model = planned(folder, max_batch=8)
    model = replace(model, config=replace(model.config, batch_timeout_s=2))
    assert slow_batch_warning(model, 8, 2.0) == ""
    assert slow_batch_warning(model, 8, 2.5) == (
        "a batch of 8 rows took 2.5 s in the warm-up, longer than batch_timeout_s = 2: its worker"
        " would be taken for stuck and restarted; raise batch_timeout_s or lower max_batch"
    )
