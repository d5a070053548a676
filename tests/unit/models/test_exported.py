"""A program of torch.export gives the answers of the module it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from batchpool.core.errors import ConfigError
from batchpool.model import Batch, make_instance, spec_of
from batchpool.models.exported import Exported
from tests.lazy import library

torch = library("torch")


def net() -> Any:
    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.layer = torch.nn.Linear(6, 3)

        def forward(self, x: Any, ids: Any) -> Any:
            pairs = torch.cat([ids, ids], dim=1)
            return {"y": self.layer(x).relu(), "total": ids.sum(1), "pairs": pairs}

    return Net().eval()


def saved(path: Path, module: Any, arguments: tuple[Any, ...], shapes: Any, **more: Any) -> Path:
    program = torch.export.export(module, arguments, dynamic_shapes=shapes, **more)
    torch.export.save(program, path)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens", max=32)
    return saved(
        tmp_path_factory.mktemp("exported") / "net.pt2",
        net(),
        (torch.ones(2, 6), torch.ones(2, 5, dtype=torch.int64)),
        {"x": {0: batch}, "ids": {0: batch, 1: tokens}},
    )


def made(path: Path, **options: Any) -> Exported:
    model = make_instance(Exported, "m", {"path": path, "trust": True, **options})
    assert isinstance(model, Exported)
    return model


@pytest.mark.parametrize("n", [1, 2, 7])
def test_answers_are_those_of_the_module(path: Path, n: int) -> None:
    model = made(path)
    model.load("cpu")
    x = torch.from_numpy(np.random.default_rng(n).standard_normal((n, 6)).astype(np.float32))
    ids = torch.arange(n * 4).reshape(n, 4)
    with torch.inference_mode():
        found = model.infer(Batch(n, {"x": x, "ids": ids}))
        expected = net()(x, ids)
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        torch.testing.assert_close(found[name], rows)


def test_the_program_tells_the_tensors(path: Path) -> None:
    spec = spec_of(made(path))
    assert [(tensor.name, tensor.dtype, tensor.max_shape) for tensor in spec.inputs] == [
        ("x", "float32", (6,)),
        ("ids", "int64", (32,)),
    ]
    assert [(tensor.name, tensor.dtype, tensor.max_shape) for tensor in spec.outputs] == [
        ("y", "float32", (3,)),
        ("total", "int64", ()),
        ("pairs", "int64", (64,)),
    ]
    named = made(path, outputs=("a", "b", "c"))
    assert [tensor.name for tensor in named.outputs] == ["a", "b", "c"]
    with pytest.raises(ValueError, match="1 names of outputs for the 3 of"):
        made(path, outputs=("a",))
    with pytest.raises(
        ConfigError, match=r"cuda_graphs = True, which needs outputs .*; 'pairs' is"
    ):
        spec_of(made(path, cuda_graphs=True))


def test_lists_and_keywords_are_inputs_of_their_own(tmp_path: Path) -> None:
    class Sum(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, parts: Any, *, scale: Any) -> Any:
            return (parts[0] + parts[1]) * scale, parts[0]

    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens")
    row = {0: batch, 1: tokens}
    arguments = ([torch.ones(2, 3), torch.ones(2, 3)],)
    shapes = {"parts": [row, row], "scale": {0: batch}}
    path = saved(tmp_path / "s.pt2", Sum(), arguments, shapes, kwargs={"scale": torch.ones(2, 1)})
    model = made(path, max_dim=9)
    model.load("cpu")
    assert [tensor.max_shape for tensor in model.inputs] == [(9,), (9,), (1,)]
    assert [tensor.name for tensor in model.outputs] == ["output_0", "output_1"]
    names = [tensor.name for tensor in model.inputs]
    rows = [torch.ones(3, 4), torch.ones(3, 4) * 2, torch.ones(3, 1) * 5]
    found = model.infer(Batch(3, dict(zip(names, rows, strict=True))))
    assert found["output_0"].tolist() == [[15.0] * 4] * 3


def test_a_program_of_a_fixed_batch_is_told_how_to_export_it(tmp_path: Path) -> None:
    module = torch.nn.Linear(6, 3)
    path = saved(tmp_path / "fixed.pt2", module, (torch.ones(2, 6),), None)
    with pytest.raises(ValueError, match=r"input 'input' has the shape \[2, 6\].*Dim\('batch'\)"):
        made(path)


def test_a_file_that_is_no_program_is_named(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(6, 3).state_dict(), tmp_path / "weights.pt2")
    (tmp_path / "text.pt2").write_text("no archive")
    for name in ("weights.pt2", "text.pt2"):
        with pytest.raises(
            ValueError, match=rf"/{name} is no program that torch\.export of PyTorch"
        ):
            made(tmp_path / name)


def test_a_file_needs_trust_and_must_be_there(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"net.pt2, a program .* can hold code .* trust = true"):
        made(path, trust=False)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*/none.pt2"):
        made(tmp_path / "none.pt2")
    assert isinstance(made(path).inputs[0], bp.Tensor)
