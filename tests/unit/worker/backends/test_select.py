"""The registry of frameworks: an entry is all that the package needs to run a new one."""

from __future__ import annotations

import array
import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchpool
from batchpool.core.errors import ConfigError
from batchpool.core.frameworks import FRAMEWORKS, Framework
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Tensor
from batchpool.model import Batch, Model, spec_of
from batchpool.wire.metadata import model_metadata
from batchpool.worker.backends.backend import batch_of, call_model
from batchpool.worker.backends.cpu import CpuBackend, NumpyBackend
from batchpool.worker.backends.select import (
    BACKENDS,
    FrameworkBackend,
    has_cuda,
    make_backend,
    prepare_process,
)
from tests.unit.worker.worker_bench import ROWS, Bench

PACKAGE = Path(batchpool.__file__).parent


class Toy(Model):
    """A model of a toy framework, whose arrays are Python's `array.array`."""

    framework = "toy"
    inputs = [Tensor("x", "float32")]
    outputs = [Tensor("y", "float32")]

    def infer(self, batch: Batch) -> dict[str, Any]:
        x = batch["x"]
        assert isinstance(x, array.array)
        return {"y": array.array("f", [2 * value + 1 for value in x])}


class ToyBackend(CpuBackend):
    def __init__(self, model: Model) -> None:
        self._model = model

    def launch(
        self,
        rows: int,
        inputs: dict[str, Array],
        sizes: dict[str, Array | None],
        views: bool,
        parts: Any = (),
    ) -> Any:
        own = {name: array.array("f", value.tobytes()) for name, value in inputs.items()}
        return call_model(self._model, batch_of(rows, own, sizes))

    def finish(self, handle: Any) -> Any:
        return {name: np.array(value, dtype=np.float32) for name, value in handle.items()}


def test_every_framework_has_a_backend() -> None:
    assert FRAMEWORKS.keys() == BACKENDS.keys()
    assert [name for name, framework in FRAMEWORKS.items() if framework.name != name] == []


def test_a_new_framework_is_an_entry_and_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="framework must be 'torch' or 'numpy', not 'toy'"):
        spec_of(Toy)
    prepared: list[str] = []
    monkeypatch.setitem(FRAMEWORKS, "toy", Framework("toy", "Toy", "toy_batchpool"))
    entry = FrameworkBackend(lambda model, *_: ToyBackend(model), prepared.append)
    monkeypatch.setitem(BACKENDS, "toy", entry)
    spec = spec_of(Toy)
    prepare_process(spec, "cpu")
    assert prepared == ["cpu"]
    assert not has_cuda(spec)
    assert model_metadata(spec)["platform"] == "toy_batchpool"
    bench = Bench(spec, backend=make_backend(Toy(), spec, "cpu", 8))
    bench.fill(*ROWS)
    bench.send(*ROWS)
    bench.run()
    assert bench.statuses(*ROWS) == [(0, "")] * 3
    assert bench.y(*ROWS) == [25, 27, 81]


def test_a_missing_library_names_the_extra_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing() -> bool:
        raise ModuleNotFoundError("No module named 'toy'", name="toy")

    monkeypatch.setitem(FRAMEWORKS, "toy", Framework("toy", "Toy", "toy_batchpool", "toys"))
    entry = FrameworkBackend(lambda model, *_: NumpyBackend(model), has_cuda=missing)
    monkeypatch.setitem(BACKENDS, "toy", entry)
    with pytest.raises(
        ImportError,
        match=r"model 'toy' has framework 'toy', but Toy is not installed;"
        r' install batchpool\[toys\] or set framework = "numpy"',
    ):
        has_cuda(spec_of(Toy))
    with pytest.raises(
        ImportError,
        match=r"'toy' needs Toy, which is not installed: pip install 'batchpool\[a,b\]'$",
    ):
        has_cuda(spec_of(Toy), "a,b")


def test_no_other_file_compares_a_framework_by_name() -> None:
    """The name of a framework stands in comparisons and in keys of the two registries only."""
    registries = {"core/frameworks.py", "worker/backends/select.py"}
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).as_posix() not in registries
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare | ast.Dict | ast.Set | ast.Tuple | ast.Match)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and part.value in FRAMEWORKS
    ]
    assert found == []
