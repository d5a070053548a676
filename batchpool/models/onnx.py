"""A file of ONNX, run by ONNX Runtime.

    pip install 'batchpool[onnx]'        # on a GPU: pip install 'batchpool[onnx-gpu]'
    batchpool serve --model onnx:fraud.onnx --option max_dim=256

Inputs and outputs are those of the file. The first dimension of each must be the batch, of any
size. Other dimensions may vary up to `max_dim`: rows of one batch are padded with zeros to the
longest of them, and an output's dimension is cut back where an input has one of its name.
"""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import batchpool as bp
from batchpool.models.bounds import AtLeastOne, AtLeastZero
from batchpool.models.extras import extra, file_at
from batchpool.models.files.json_files import check_no_lfs_pointer

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(string)": "bytes",
    **{f"tensor({name})": name for name in ("bool", "float16", "int8", "int16", "int32", "int64")},
    **{f"tensor({name})": name for name in ("uint8", "uint16", "uint32", "uint64")},
}
_CUDA = "CUDAExecutionProvider"
# The key and the tag of its value, in the order in which Protocol Buffers writes them.
_LOCATION = re.compile(rb"\x0a\x08location\x12")


class Onnx(bp.Model):
    """The inputs of the file [n, ...] -> its outputs [n, ...].

    path: the file. max_dim: most elements of each dimension that varies; max_dims: of those with
    these names. max_bytes: most bytes of each text. threads: of one worker, 0 for its share of the
    cores. Texts that are not UTF-8 are refused with bp.InvalidInput. Raises RuntimeError without
    ONNX Runtime, ValueError for a file whose tensors cannot be served.
    """

    name = "onnx"
    framework = "numpy"

    def __init__(
        self,
        path: Path,
        max_dim: AtLeastOne = 512,
        max_dims: dict[str, int] | None = None,
        max_bytes: AtLeastOne = 1024,
        threads: AtLeastZero = 0,
    ) -> None:
        with extra("onnx"):
            import onnxruntime
        self._path = file_at(path)
        self._threads = threads or int(os.environ.get("OMP_NUM_THREADS") or 0)
        self._max_dim, self._max_dims, self._max_bytes = max_dim, max_dims or {}, max_bytes
        session = self._session(["CPUExecutionProvider"], optimised=False)
        self.inputs = [self._tensor("input", node) for node in session.get_inputs()]
        self.outputs = [self._tensor("output", node) for node in session.get_outputs()]
        self._check_max_dims()
        if _CUDA in onnxruntime.get_available_providers():
            self.framework = "torch"  # whose tensors are on the device

    def load(self, device: str) -> None:
        self._device, _, index = device.partition(":")
        providers: list[Any] = ["CPUExecutionProvider"]
        if index:
            providers.insert(0, (_CUDA, {"device_id": int(index)}))
        self._run = self._session(providers)
        if index and self._run.get_providers()[0] != _CUDA:
            raise RuntimeError(f"ONNX Runtime cannot use {device}; its log above says why")
        self._index = int(index or 0)
        self._names = [tensor.name for tensor in self.outputs]
        texts = any(tensor.is_bytes for tensor in (*self.inputs, *self.outputs))
        self._is_bound = self._device != "cpu" and not texts

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        if self._is_bound and all(batch[name].numel() for name in self._input_names):
            return self._infer_bound(batch)
        rows = {name: _as_input(batch, name) for name in self._input_names}
        found = self._run.run(self._names, rows)
        return {name: _as_output(rows) for name, rows in zip(self._names, found, strict=True)}

    def _infer_bound(self, batch: bp.Batch) -> dict[str, Any]:
        """Run on arrays where they lie, on the device of `load`, and leave the outputs there."""
        import torch

        binding = self._run.io_binding()
        inputs = {name: batch[name].contiguous() for name in self._input_names}
        for tensor in self.inputs:
            rows = inputs[tensor.name]
            dtype, shape, address = np.dtype(tensor.dtype), tuple(rows.shape), rows.data_ptr()
            binding.bind_input(tensor.name, self._device, self._index, dtype, shape, address)
        for name in self._names:
            binding.bind_output(name, self._device, self._index)
        if self._device != "cpu":  # ONNX Runtime has a stream of its own, which it waits for
            torch.cuda.current_stream().synchronize()
        self._run.run_with_iobinding(binding)
        found = [torch.utils.dlpack.from_dlpack(value) for value in binding.get_outputs()]
        return dict(zip(self._names, found, strict=True))

    @property
    def _input_names(self) -> list[str]:
        return [tensor.name for tensor in self.inputs]

    def _session(self, providers: list[Any], optimised: bool = True) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads if optimised else 1
        # Threads that spin would take the cores from the pool's other processes.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if not optimised:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        weights = _weights_apart(self._path) if optimised else {}  # until the session has a copy
        if weights:
            sizes = [content.size for content in weights.values()]
            options.add_external_initializers_from_files_in_memory(
                [*weights], [*weights.values()], sizes
            )
        try:
            return onnxruntime.InferenceSession(str(self._path), options, providers=providers)
        except Exception as error:
            if optimised:
                raise  # a worker tells a device that is out of memory by the kind of the error
            library = f"ONNX Runtime {onnxruntime.__version__}"
            raise ValueError(f"{self._path} is no file that {library} loads: {error}") from error

    def _check_max_dims(self) -> None:
        dims = [dim for tensor in (*self.inputs, *self.outputs) for dim in tensor.shape]
        names = {dim.name for dim in dims if isinstance(dim, bp.Dim) and dim.name}
        for name in self._max_dims:
            if name not in names:
                known = ", ".join(map(repr, sorted(names))) or "none"
                raise ValueError(
                    f"max_dims names {name!r}; the named dimensions of {self._path} that vary,"
                    f" besides the batch, are: {known}"
                )

    def _tensor(self, kind: str, node: Any) -> bp.Tensor:
        what = f"{self._path}: {kind} {node.name!r}, {node.type} {node.shape},"
        if node.type not in _DTYPES:
            raise ValueError(
                f"{what} is of no type that can be served; known: {', '.join(_DTYPES)}"
            )
        if not node.shape or isinstance(node.shape[0], int):
            raise ValueError(
                f"{what} does not begin with a batch dimension of any size; export it anew with"
                f" dynamic_axes={{{node.name!r}: {{0: 'batch'}}}} of torch.onnx.export or the like"
            )
        dtype = _DTYPES[node.type]
        shape = tuple(
            size
            if isinstance(size, int)
            else bp.Dim(self._max_dims.get(size, self._max_dim), size or "")
            for size in node.shape[1:]
        )
        limit = self._max_bytes if dtype == "bytes" else None
        return bp.Tensor(node.name, dtype, shape, max_bytes=limit)


def _weights_apart(path: Path) -> dict[str, npt.NDArray[np.uint8]]:
    """The files beside a file of ONNX that have weights of it, by the names that it gives them.

    A session that is handed them copies what it needs. One that opens them itself maps them for as
    long as it lives, and whoever writes new ones over them, for the next reload, would change the
    answers of the workers that still run, or end them.
    """
    with path.open("rb") as graph, mmap.mmap(graph.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        names = {_text_at(raw, match.end()) for match in _LOCATION.finditer(raw)}
    found: dict[str, npt.NDArray[np.uint8]] = {}
    for name in sorted(names):
        file = os.path.join(path.parent, name)
        # What only looks like a name, in the midst of weights, is no file, however long it is.
        if os.path.isfile(file) and os.path.getsize(file):
            check_no_lfs_pointer(Path(file))
            found[name] = np.memmap(file, np.uint8, "r")
    return found


def _text_at(raw: mmap.mmap, at: int) -> str:
    """The text behind its length, which is written with seven bits a byte, the lower ones first."""
    size, shift = 0, 0
    for byte in raw[at : at + 2]:
        at, size, shift = at + 1, size | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            break
    return raw[at : at + size].decode(errors="replace")


def _as_input(batch: bp.Batch, name: str) -> Any:
    """The rows of one input as numpy has them, texts as `str`."""
    rows = batch[name]
    if not isinstance(rows, np.ndarray):
        return rows.cpu().numpy()
    if rows.dtype != object:
        return rows
    texts = np.empty(rows.shape, object)
    for place, raw in np.ndenumerate(rows):
        try:
            texts[place] = raw.decode()
        except UnicodeDecodeError as error:
            text = f"{name} is not valid UTF-8: {error.reason} at byte {error.start}"
            batch.fail(place[0], bp.InvalidInput(text, {"offset": error.start}))
            texts[place] = ""
    return texts


def _as_output(rows: Any) -> Any:
    if rows.dtype != object:
        return rows
    return np.array([text.encode() for text in rows.ravel()], object).reshape(rows.shape)
