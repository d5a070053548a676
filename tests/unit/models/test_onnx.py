"""A file of ONNX gives the answers of ONNX Runtime itself, with the tensors of the file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from batchpool.model import Batch, make_instance, spec_of
from tests.unit.models import onnx_files
from tests.unit.models.files.written_over import write_over

onnxruntime = pytest.importorskip("onnxruntime")

from batchpool.models.onnx import Onnx, _weights_apart  # noqa: E402


def loaded(path: Path, **options: Any) -> Onnx:
    model = make_instance(Onnx, "m", {"path": path, **options})
    assert isinstance(model, Onnx)
    model.load("cpu")
    return model


def test_answers_are_those_of_the_runtime_to_the_bit(tmp_path: Path) -> None:
    path = onnx_files.mlp(tmp_path)
    model = loaded(path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for n in (1, 7, 64):
        x = np.random.default_rng(n).standard_normal((n, 6)).astype(np.float32)
        x.flags.writeable = False  # as the views of shared memory
        (expected,) = session.run(["y"], {"x": x})
        found = model.infer(Batch(n, {"x": x}))["y"]
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", ["mlp.data", "w/" + "n" * 200, "wörds"])
def test_weights_apart_are_the_sessions_own(tmp_path: Path, name: str) -> None:
    """New weights that are copied onto the old ones, for a reload to come, change no answer."""
    x = {"x": np.random.default_rng(1).standard_normal((5, 6)).astype(np.float32)}
    expected = loaded(onnx_files.mlp(tmp_path)).infer(Batch(5, x))["y"]
    model = loaded(onnx_files.mlp_with_weights_apart(tmp_path, name))
    assert model.infer(Batch(5, x))["y"].tobytes() == expected.tobytes()
    write_over(tmp_path / name, whole=True)
    assert model.infer(Batch(5, x))["y"].tobytes() == expected.tobytes()
    with (tmp_path / "mlp.onnx").open("ab") as file:  # as at the end of weights within the file
        file.write(b"\x0a\x08location\x12")
    assert [*_weights_apart(tmp_path / "mlp.onnx")] == [name]


def test_inputs_on_a_device_are_bound_where_they_lie(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = loaded(onnx_files.mlp(tmp_path))
    x = np.random.default_rng(1).standard_normal((5, 6)).astype(np.float32)
    expected = model.infer(Batch(5, {"x": x}))["y"]
    model._is_bound = True  # the CPU stands in for the GPU
    found = model.infer(Batch(5, {"x": torch.from_numpy(x.T.copy()).T}))["y"]
    assert isinstance(found, torch.Tensor)
    assert found.numpy().tobytes() == expected.tobytes()


def test_dimensions_that_vary_have_a_most_and_their_name(tmp_path: Path) -> None:
    path = onnx_files.masked(tmp_path)
    spec = spec_of(make_instance(Onnx, "m", {"path": path, "max_dims": {"tokens": 32}}))
    tokens = bp.Dim(32, "tokens")
    assert spec.framework == "numpy"
    assert spec.inputs == (
        bp.Tensor("ids", "int64", (tokens,)),
        bp.Tensor("mask", "int64", (tokens,)),
    )
    assert spec.outputs == (bp.Tensor("doubled", "int64", (tokens,)), bp.Tensor("total", "int64"))
    assert spec_of(make_instance(Onnx, "m", {"path": path})).inputs[0].max_shape == (512,)


def test_a_most_for_a_dimension_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = onnx_files.masked(tmp_path)
    with pytest.raises(ValueError, match=r"max_dims names 'tokenz'; .* are: 'tokens'"):
        make_instance(Onnx, "m", {"path": path, "max_dims": {"tokenz": 32}})


def test_texts_are_utf8_and_a_bad_one_fails_alone(tmp_path: Path) -> None:
    model = loaded(onnx_files.echo(tmp_path, onnx_files.STRING, ["n", 2]), max_bytes=20)
    assert model.inputs == [bp.Tensor("x", "bytes", (2,), max_bytes=20)]
    rows = np.array([["é".encode(), b"a\0"], [b"\xff", b"x"], [b"", b"b"]], object)
    batch = Batch(3, {"x": rows})
    found = model.infer(batch)["y"]
    assert found[[0, 2]].tolist() == rows[[0, 2]].tolist()
    assert list(batch.failed) == [1]
    assert isinstance(batch.failed[1], bp.InvalidInput)
    assert "x is not valid UTF-8" in str(batch.failed[1])


@pytest.mark.parametrize(
    ("kind", "shape", "error"),
    [
        (
            onnx_files.FLOAT,
            [1, 3],
            r"input 'x', tensor\(float\) \[1, 3\], does not begin with a batch",
        ),
        (onnx_files.FLOAT, [], "does not begin with a batch"),
        (onnx_files.TensorProto.BFLOAT16, ["n"], "of no type that can be served; known: tensor"),
    ],
)
def test_a_file_that_cannot_be_served_in_batches_is_told_why(
    tmp_path: Path, kind: int, shape: list[Any], error: str
) -> None:
    path = onnx_files.echo(tmp_path, kind, shape)
    with pytest.raises(ValueError, match=error):
        make_instance(Onnx, "m", {"path": path})


def test_a_file_that_is_no_onnx_is_told_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "net.pt2"
    file.write_bytes(b"PK\3\4 a program of torch.export")
    with pytest.raises(ValueError, match=rf"{file} is no file that ONNX Runtime .* loads: "):
        make_instance(Onnx, "m", {"path": file})


def test_a_missing_file_is_named_in_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/nowhere")
    with pytest.raises(FileNotFoundError, match=r"no file /nowhere/a\.onnx, which"):
        make_instance(Onnx, "m", {"path": Path("~/a.onnx")})
    with pytest.raises(FileNotFoundError, match=f"no file {tmp_path}/a.onnx, which option path"):
        make_instance(Onnx, "m", {"path": Path("a.onnx")})


def test_a_missing_package_is_told_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(RuntimeError, match=r"onnxruntime, .*: pip install 'batchpool\[onnx\]'"):
        make_instance(Onnx, "m", {"path": Path("a.onnx")})


@pytest.mark.parametrize(("given", "option", "expected"), [("3", 0, 3), ("3", 2, 2), ("", 0, 0)])
def test_a_session_has_the_threads_of_its_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str, option: int, expected: int
) -> None:
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", given)
    model = loaded(onnx_files.mlp(tmp_path), threads=option)
    assert model._run.get_session_options().intra_op_num_threads == expected


def test_rows_alone_and_in_company_have_the_same_answers(tmp_path: Path) -> None:
    exact = loaded(onnx_files.masked(tmp_path))
    ids = np.arange(5 * 8).reshape(5, 8)
    mask = (ids % 3 == 0).astype(np.int64)
    together = exact.infer(Batch(5, {"ids": ids, "mask": mask}))
    for row in range(5):
        alone = exact.infer(Batch(1, {"ids": ids[row : row + 1], "mask": mask[row : row + 1]}))
        for name in ("doubled", "total"):
            assert alone[name][0].tolist() == together[name][row].tolist()
