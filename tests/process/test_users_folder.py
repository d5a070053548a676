"""Files of the user's harm no process of the pool, whatever their names: only models are imported
from the current directory and from beside the configuration file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.process.pool_under_test import Pool, command, serving, started, until
from tests.process.web import ask

OTHERS = "raise RuntimeError(f'{__file__} was imported')\n"
SCALE = """
import queue
import batchpool as bp
import scale_helper
assert queue.Queue, "Python's own"
class Scale(bp.Model):
    framework = "numpy"
    inputs = [bp.Tensor("x", "float32", (bp.Dim(1 << 20),))]
    outputs = [bp.Tensor("y", "float32", (1,))]
    def infer(self, batch):
        return {"y": scale_helper.FACTOR * batch["x"][:, :1]}
"""
ONES = np.ones((1, 4), np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file of the name of every module of Python's, of ours and of what we use."""
    ours = ("batchpool", "numpy", "msgspec", "uvicorn", "starlette", "uvloop", "httptools")
    for name in (*sys.stdlib_module_names, *ours):
        (tmp_path / f"{name}.py").write_text(OTHERS)
    return tmp_path


def add_model(folder: Path, factor: int = 2) -> None:
    (folder / "scale.py").write_text(SCALE)
    (folder / "scale_helper.py").write_text(f"FACTOR = {factor}\n")


def answers(pool: Pool) -> list[list[float]]:
    with pool.client() as client:
        found: list[list[float]] = client.infer("scale", x=ONES)["y"].tolist()
        return found


@pytest.mark.long
def test_files_with_the_names_of_other_modules_are_imported_by_nobody(folder: Path) -> None:
    for name in ("numpy.py", "msgspec.py"):
        (folder / name).unlink()  # which the user's own model would import, as everywhere
    add_model(folder)
    with serving({"import": "scale:Scale", "name": "scale"}, cwd=folder) as pool:
        assert answers(pool) == [[2]]
        long = {"name": "x", "shape": [1, 1 << 19], "datatype": "FP32", "data": [0.5] * (1 << 19)}
        answer = ask(pool, "/v2/models/scale/infer", json.dumps({"inputs": [long]}).encode())
        assert json.loads(answer.body)["outputs"][0]["data"] == [1]
        assert ask(pool, "/metrics").status == 200
        add_model(folder, factor=3)
        subprocess.run(command("reload", "--socket", pool.socket), cwd=folder, check=True)
        assert answers(pool) == [[3]]
        assert "was imported" not in pool.log


def test_modules_beside_the_configuration_file_are_found(tmp_path: Path) -> None:
    with started({"import": "scale:Scale", "name": "scale"}, cwd=tmp_path, beside=SCALE_FILES) as p:
        p.wait_ready()
        assert answers(p) == [[2]]


SCALE_FILES = {"scale.py": SCALE, "scale_helper.py": "FACTOR = 2\n"}


def test_the_current_directory_comes_before_the_configuration_files(tmp_path: Path) -> None:
    add_model(tmp_path, factor=5)
    table = {"import": "scale:Scale", "name": "scale"}
    with serving(table, cwd=tmp_path, beside=SCALE_FILES) as pool:
        assert answers(pool) == [[5]]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nowhere:Model", "there is no module 'nowhere' in {cwd}, {beside}, nor among the"),
        ("scale.more:Model", "there is no module 'scale.more' in {cwd}, {beside}"),
        ("broken:Model", "No module named 'not_installed' ({cwd}/broken.py:1)"),
        ("secrets:Model", "has no 'Model'; 'secrets' is a module of Python's own, so name"),
    ],
)
def test_where_a_module_was_looked_for_is_told(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "broken.py").write_text("import not_installed\n")
    (tmp_path / "secrets.py").write_text(SCALE)
    add_model(tmp_path)
    with started({"import": name}, cwd=tmp_path) as pool:
        pool.expected_status = 1
        assert pool.wait_end() == 1
        assert sentence.format(cwd=tmp_path, beside=pool.folder) in pool.last_line


PRINTS = """
import batchpool as bp
print("imported")
class Prints(bp.Model):
    framework = "numpy"
    inputs = [bp.Tensor("x", "float32", (4,))]
    outputs = [bp.Tensor("y", "float32", (4,))]
    def load(self, device):
        print("loaded on", device)
    def infer(self, batch):
        print("ran", len(batch["x"]))
        return {"y": batch["x"]}
"""


def test_what_a_model_prints_is_seen_at_once(tmp_path: Path) -> None:
    """Into a file too, where Python would keep it until the end, and lose it with a kill."""
    (tmp_path / "prints.py").write_text(PRINTS)
    with serving({"import": "prints:Prints", "name": "prints"}, cwd=tmp_path) as pool:
        assert "loaded on cpu" in pool.log
        with pool.client() as client:
            client.infer("prints", x=ONES)
        until(lambda: pool.log.count("ran 1") >= 2, "the line of the row")  # and of the warm-up
