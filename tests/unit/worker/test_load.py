"""The class that a worker runs: the one of its name, unless that changed under the pool."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import ModelError
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.model import Model
from batchpool.worker.load import check_declaration, load_class

SERVED = ModelSpec(
    "m",
    "numpy",
    (Tensor("x", "float32", (4, Dim(9, "t")), pad=float("nan")), Tensor("z", "int64")),
    (Tensor("y", "float32", (4,)),),
    (Tensor("k", "float32", (), default=np.float32(0.5)),),
)


def served() -> ModelSpec:
    """As it comes to a worker."""
    return ModelSpec.from_wire(SERVED.to_wire())


def test_the_same_tensors_are_the_same_whatever_the_name() -> None:
    check_declaration(served(), SERVED)
    check_declaration(served(), replace(SERVED, name="other"))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"framework": "torch"}, "among its framework torch; numpy was expected"),
        (
            {"outputs": (Tensor("y", "float32", (8,)),)},
            r"'m' as it is served: among its outputs Tensor\(name='y', .*\(8,\).*\(4,\).* expected",
        ),
        ({"outputs": (Tensor("y", "int32", (4,)),)}, "dtype='int32'.*dtype='float32'"),
        ({"inputs": SERVED.inputs[:1]}, "among its inputs None; Tensor.*name='z'"),
        ({"inputs": (*SERVED.inputs, Tensor("w", "int8"))}, "name='w'.*; None was expected"),
        ({"parameters": ()}, "among its parameters None; .*name='k'"),
    ],
)
def test_another_declaration_is_refused_by_what_differs(change: dict[str, Any], error: str) -> None:
    with pytest.raises(ModelError, match=error):
        check_declaration(served(), replace(SERVED, **change))


# -- importing ------------------------------------------------------------------------------

SOURCE = """
import batchpool as bp
class Known(bp.Model):
    class Inner(bp.Model):
        pass
class Other:
    pass
number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, which is not on Python's path, with the module `load_class_here`."""
    (tmp_path / "load_class_here.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    monkeypatch.delitem(sys.modules, "load_class_here", raising=False)
    return tmp_path


def test_a_class_of_the_current_directory_is_found(folder: Path) -> None:
    found = load_class("load_class_here:Known")
    assert issubclass(found, Model)
    assert (found.__module__, found.__name__) == ("load_class_here", "Known")
    assert load_class("load_class_here:Known.Inner").__qualname__ == "Known.Inner"
    assert sys.path.count(str(folder)) == 1
    installed = sysconfig.get_path("purelib")
    assert own_modules() < sys.path.index(str(folder)) < sys.path.index(installed)
    sys.modules.pop("load_class_here")


def own_modules() -> int:
    """The last place in the path of Python's own modules."""
    own = sysconfig.get_path("stdlib")
    return max(i for i, path in enumerate(sys.path) if path in (own, f"{own}/lib-dynload"))


def test_folders_of_the_variable_come_behind_the_current_directory(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = tmp_path_factory.mktemp("beside")
    (beside / "load_class_here.py").write_text("raise RuntimeError\n")
    (beside / "load_class_beside.py").write_text(SOURCE)
    monkeypatch.setenv("BATCHPOOL_MODEL_PATH", f":{beside}:{beside}:")
    assert load_class("load_class_beside:Known").__name__ == "Known"
    assert load_class("load_class_here:Known").__name__ == "Known"
    at = sys.path.index(str(folder))
    assert sys.path[at : at + 2] == [str(folder), str(beside)]
    assert sys.path.count(str(beside)) == 1
    for name in ("load_class_here", "load_class_beside"):
        sys.modules.pop(name)


def test_a_missing_module_is_told_with_the_folders_that_were_searched(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHPOOL_MODEL_PATH", "/nowhere")
    with pytest.raises(ModuleNotFoundError) as caught:
        load_class("load_class_nowhere:Known")
    assert str(caught.value) == (
        f"there is no module 'load_class_nowhere' in {folder}, /nowhere,"
        " nor among the installed packages"
    )
    (folder / "load_class_broken.py").write_text("import load_class_not_there\n")
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'load_class_not_there'$"):
        load_class("load_class_broken:Known")


def test_a_file_with_the_name_of_a_module_of_pythons_is_told_to_be_renamed(folder: Path) -> None:
    (folder / "secrets.py").write_text(SOURCE)
    with pytest.raises(AttributeError, match="'secrets' is a module of Python's own, so name"):
        load_class("secrets:Known")


@pytest.mark.parametrize("name", ["onnx:fraud.onnx", "causal_lm:folder"])
def test_a_short_form_in_a_file_is_told_what_to_write(folder: Path, name: str) -> None:
    """The words are those of a class MODULE:CLASS: only the look-up shows that none is meant."""
    expected = re.escape(f'and path = "{name.partition(":")[2]}" in its [model.options]')
    with pytest.raises((ImportError, AttributeError), match=expected):
        load_class(name)


def test_the_ending_of_a_file_is_told_to_be_left_out(folder: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"packages; write load_class_here:Known$"):
        load_class("load_class_here.py:Known")


def test_a_misspelt_short_form_that_names_a_package_is_told(folder: Path) -> None:
    """`sentence_transformers:FOLDER` names the package, in which there is no such class."""
    (folder / "sentence_transformerz.py").write_text("Other = 1\n")
    with pytest.raises(AttributeError, match='did you mean "sentence_transformer:bge"'):
        load_class("sentence_transformerz:bge")
    sys.modules.pop("sentence_transformerz")


@pytest.mark.parametrize("name", ["load_class_here", "load_class_here:", ":Known", ""])
def test_a_name_has_two_parts(folder: Path, name: str) -> None:
    with pytest.raises(ImportError, match="is not of the form MODULE:CLASS"):
        load_class(name)
    assert "load_class_here" not in sys.modules


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("Nobody", AttributeError, "module 'load_class_here' has no 'Nobody'; it has Known"),
        (
            "Known.Nobody",
            AttributeError,
            "module 'load_class_here' has no 'Known.Nobody'; it has Known",
        ),
        ("Other", TypeError, "load_class_here:Other is not a subclass of batchpool.Model"),
        ("number", TypeError, "load_class_here:number is not a subclass of batchpool.Model"),
    ],
)
def test_what_is_no_model_is_refused_by_its_name(
    folder: Path, name: str, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as caught:
        load_class(f"load_class_here:{name}")
    assert str(caught.value) == text
    sys.modules.pop("load_class_here")


def test_a_fifo_in_the_place_of_the_module_is_told(folder: Path) -> None:
    os.mkfifo(folder / "load_class_fifo.py")
    with pytest.raises(ImportError, match=r"load_class_fifo.py is not a regular file"):
        load_class("load_class_fifo:Known")
