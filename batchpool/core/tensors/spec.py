"""Tensors as a model declares them, and rows as a client brings them.

A model's request is rows: every tensor of it has the row count n as its first
dimension. What follows n is the row's shape, fixed or dynamic up to a maximum:

    Tensor("x", "float32", (4,))                      [n, 4]
    Tensor("ids", "int64", (Dim(max=512),), pad=0)    [n, 0..512], one size per row
    Tensor("text", "bytes", (), max_bytes=8192)       [n] byte strings
    Tensor("top_k", "int64", (), default=5)           as a parameter: one scalar per row

Two names for one dtype: numpy's here ("float32"), the wire protocol's there ("FP32").
"bfloat16" has no numpy dtype; its rows travel as their uint16 bit patterns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from batchpool.core.errors import ConfigError, InvalidRequest, TooLarge
from batchpool.core.tensors.numbers import as_row_value, from_numbers, stored_number
from batchpool.core.tensors.strings import checked_elements, object_array

Array = npt.NDArray[Any]

# dtype name -> (storage dtype, wire protocol's name, config's name)
_DTYPES: dict[str, tuple[str, str]] = {
    "bool": ("?", "BOOL"),
    "uint8": ("u1", "UINT8"),
    "uint16": ("u2", "UINT16"),
    "uint32": ("u4", "UINT32"),
    "uint64": ("u8", "UINT64"),
    "int8": ("i1", "INT8"),
    "int16": ("i2", "INT16"),
    "int32": ("i4", "INT32"),
    "int64": ("i8", "INT64"),
    "float16": ("f2", "FP16"),
    "bfloat16": ("u2", "BF16"),
    "float32": ("f4", "FP32"),
    "float64": ("f8", "FP64"),
    "bytes": ("O", "BYTES"),
}
DTYPE_OF_WIRE: dict[str, str] = {wire: name for name, (_, wire) in _DTYPES.items()}


@dataclass(frozen=True)
class Dim:
    """A dynamic dimension of a row: 0 to `max` elements, each row its own size.

    Two dimensions of one model with the same `name` have the same size in a row: an
    output's dimension so named is cut back to the input's size.
    """

    max: int
    name: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.max, int) or self.max < 1:
            raise ConfigError(f"Dim(max={self.max!r}): max must be a whole number of at least 1")


@dataclass(frozen=True)
class Tensor:
    """One tensor of a model, without the leading row dimension.

    name: as callers spell it.  dtype: numpy's name, or "bfloat16", or "bytes".
    shape: the row's shape, ints and `Dim`s.  pad: fills up shorter rows in a batch.
    max_bytes: longest element of a "bytes" tensor.  default: a parameter's value when
    the request does not give it.
    """

    name: str
    dtype: str
    shape: tuple[int | Dim, ...] = ()
    pad: float = 0
    max_bytes: int | None = None
    default: Any = None

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise ConfigError(f"a tensor's name must be a word, not {self.name!r}")
        if self.dtype not in _DTYPES:
            known = ", ".join(_DTYPES)
            raise ConfigError(f"tensor {self.name!r}: unknown dtype {self.dtype!r}; known: {known}")
        object.__setattr__(self, "shape", tuple(self.shape))
        for dim in self.shape:
            if not isinstance(dim, Dim) and (not isinstance(dim, int) or dim < 0):
                raise ConfigError(f"tensor {self.name!r}: bad dimension {dim!r} in its shape")
        if (self.dtype == "bytes") != (self.max_bytes is not None):
            raise ConfigError(
                f"tensor {self.name!r}: max_bytes belongs to dtype 'bytes', which must have it"
            )
        if self.max_bytes is not None and self.max_bytes < 1:
            raise ConfigError(f"tensor {self.name!r}: max_bytes must be at least 1")
        if not self.is_bytes:
            try:
                stored_number(self, self.pad)
            except InvalidRequest:
                raise ConfigError(
                    f"tensor {self.name!r}: pad {self.pad!r} does not fit {self.dtype}"
                ) from None

    @property
    def is_bytes(self) -> bool:
        return self.dtype == "bytes"

    @property
    def wire_dtype(self) -> str:
        """The wire protocol's name of the dtype, as "FP32"."""
        return _DTYPES[self.dtype][1]

    @cached_property
    def np_dtype(self) -> np.dtype[Any]:
        """The storage dtype: native numpy; uint16 for bfloat16; object for bytes."""
        return np.dtype(_DTYPES[self.dtype][0])

    @property
    def stored_pad(self) -> Any:
        """`pad` as the storage dtype holds it: a bfloat16's bits; b"" for bytes."""
        return b"" if self.is_bytes else stored_number(self, self.pad)

    @cached_property
    def max_shape(self) -> tuple[int, ...]:
        """The row's shape with every dynamic dimension at its maximum."""
        return tuple(d.max if isinstance(d, Dim) else d for d in self.shape)

    @cached_property
    def dynamic(self) -> tuple[int, ...]:
        """The positions of the dynamic dimensions in the row's shape."""
        return tuple(i for i, d in enumerate(self.shape) if isinstance(d, Dim))

    def is_plain(self, array: Any) -> bool:
        """Whether this is exactly an array [n, *row shape] of a fixed tensor, needing nothing."""
        return (
            type(array) is np.ndarray
            and array.dtype is self.np_dtype
            and not self.dynamic
            and array.ndim == 1 + len(self.shape)
            and array.shape[1:] == self.shape
        )

    @property
    def wire_shape(self) -> list[int]:
        """The shape as metadata shows it: -1 for the rows, then -1 for each dynamic one."""
        return [-1, *(-1 if isinstance(d, Dim) else d for d in self.shape)]

    @property
    def row_bytes(self) -> int:
        """The most bytes one row can take."""
        each = self.max_bytes if self.max_bytes is not None else self.np_dtype.itemsize
        return math.prod(self.max_shape) * each

    def describe_shape(self) -> str:
        """The shape for messages, as "[n, 4]" or "[n, 0..512]"."""
        dims = [f"0..{d.max}" if isinstance(d, Dim) else str(d) for d in self.shape]
        return "[" + ", ".join(["n", *dims]) + "]"


@dataclass(frozen=True)
class ModelSpec:
    """What the outside needs to know of a model: its name and its tensors."""

    name: str
    framework: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    parameters: tuple[Tensor, ...] = ()

    def __post_init__(self) -> None:
        if self.framework not in ("torch", "numpy"):
            raise ConfigError(
                f"model {self.name!r}: framework must be 'torch' or 'numpy', not {self.framework!r}"
            )
        if not self.inputs or not self.outputs:
            raise ConfigError(f"model {self.name!r}: needs at least one input and one output")
        for kind in ("inputs", "outputs"):
            names = [t.name for t in getattr(self, kind)]
            names += [p.name for p in self.parameters] if kind == "inputs" else []
            for name in names:
                if names.count(name) > 1:
                    raise ConfigError(f"model {self.name!r}: {name!r} stands twice in its {kind}")
        for parameter in self.parameters:
            if parameter.shape or parameter.is_bytes:
                raise ConfigError(
                    f"model {self.name!r}: parameter {parameter.name!r} must be a number: shape ()"
                )
            if parameter.default is not None:
                try:
                    as_row_value(parameter, parameter.default)
                except InvalidRequest as exc:
                    raise ConfigError(f"model {self.name!r}: its default: {exc}") from None

    @cached_property
    def has_dynamic_inputs(self) -> bool:
        return any(tensor.dynamic for tensor in self.inputs)

    def to_wire(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and text, for control messages."""
        return {
            "name": self.name,
            "framework": self.framework,
            **{
                kind: [_tensor_to_wire(t) for t in getattr(self, kind)]
                for kind in ("inputs", "outputs", "parameters")
            },
        }

    @classmethod
    def from_wire(cls, form: Mapping[str, Any]) -> ModelSpec:
        return cls(
            form["name"],
            form["framework"],
            *(
                tuple(_tensor_from_wire(t) for t in form[kind])
                for kind in ("inputs", "outputs", "parameters")
            ),
        )


def _tensor_to_wire(tensor: Tensor) -> dict[str, Any]:
    shape = [[d.max, d.name] if isinstance(d, Dim) else d for d in tensor.shape]
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": shape,
        "pad": tensor.pad,
        "max_bytes": tensor.max_bytes,
        "default": tensor.default,
    }


def _tensor_from_wire(form: Mapping[str, Any]) -> Tensor:
    shape = tuple(d if isinstance(d, int) else Dim(d[0], d[1]) for d in form["shape"])
    return Tensor(**{**form, "shape": shape})


@dataclass(slots=True)
class Rows:
    """n checked rows, ready to be written into slots.

    tensors: every input as an array [n, *row shape], native byte order, storage dtype
    (object array of `bytes` for a bytes tensor).  parameters: one value per declared
    parameter, the same for all n rows.
    """

    n: int
    tensors: dict[str, Array]
    parameters: dict[str, Any]


def check_rows(
    spec: ModelSpec, tensors: Mapping[str, Any], parameters: Mapping[str, Any] | None = None
) -> Rows:
    """Check what a caller brings against the model: names, dtypes, shapes, row counts.

    Arrays of another layout (strided, big-endian, read-only) are fine; another dtype is
    not, except Python numbers and lists, which take the declared dtype if they fit it.
    Raises InvalidRequest naming the tensor, what came and what was expected; TooLarge for
    a row that no slot can hold.
    """
    declared = {t.name: t for t in spec.inputs}
    for name in tensors:
        if name not in declared:
            hint = ": it is a parameter" if any(name == p.name for p in spec.parameters) else ""
            expected = ", ".join(map(repr, declared))
            raise InvalidRequest(
                f"model {spec.name!r} has no input {name!r}{hint}; it has {expected}"
            )
    checked: dict[str, Array] = {}
    n = -1
    for tensor in spec.inputs:
        if tensor.name not in tensors:
            raise InvalidRequest(f"input {tensor.name!r} of model {spec.name!r} is missing")
        array = as_rows(tensor, tensors[tensor.name])
        if n >= 0 and array.shape[0] != n:
            raise InvalidRequest(
                f"input {tensor.name!r} has {array.shape[0]} rows, "
                f"but input {spec.inputs[0].name!r} has {n}"
            )
        n = array.shape[0]
        checked[tensor.name] = array
    if n < 1:
        raise InvalidRequest(f"input {spec.inputs[0].name!r} has 0 rows; at least 1 was expected")
    check_named(spec, checked)
    return Rows(n, checked, check_parameters(spec, parameters or {}))


def check_named(spec: ModelSpec, arrays: Mapping[str, Array]) -> None:
    """Dynamic dimensions of one name must have one size."""
    if not spec.has_dynamic_inputs:
        return
    first: dict[str, tuple[str, int]] = {}
    for tensor in spec.inputs:
        for at in tensor.dynamic:
            dim = tensor.shape[at]
            if isinstance(dim, Dim) and dim.name:
                size = arrays[tensor.name].shape[1 + at]
                other, known = first.setdefault(dim.name, (tensor.name, size))
                if size != known:
                    raise InvalidRequest(
                        f"input {tensor.name!r} has {size} along {dim.name!r},"
                        f" but input {other!r} has {known}"
                    )


def check_parameters(spec: ModelSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every declared parameter's value, given or default; InvalidRequest names what is wrong."""
    values: dict[str, Any] = {}
    for parameter in spec.parameters:
        value = given.get(parameter.name)
        if value is None:
            value = parameter.default
        if value is None:
            raise InvalidRequest(
                f"parameter {parameter.name!r} of model {spec.name!r} is missing and has no default"
            )
        values[parameter.name] = as_row_value(parameter, value)
    for name in given:
        if name not in values:
            known = ", ".join(map(repr, values)) or "none"
            raise InvalidRequest(
                f"model {spec.name!r} has no parameter {name!r}; it declares {known}"
            )
    return values


def as_rows(tensor: Tensor, value: Any) -> Array:
    """`value` as a checked array [n, *row shape] of the tensor's storage dtype."""
    if tensor.is_plain(value) and not tensor.is_bytes:
        return cast(Array, value)
    if tensor.is_bytes:
        loose = object_array(tensor, value)
        check_shape(tensor, loose.shape)
        return checked_elements(tensor, loose)
    if hasattr(value, "detach"):  # a torch tensor; this file may not import torch
        value = _of_torch(tensor, value)
    if not isinstance(value, (np.ndarray, np.generic)):
        value = _of_python(tensor, value)
    array = np.asarray(value)
    if array.dtype.newbyteorder("=") != tensor.np_dtype:
        raise InvalidRequest(
            f"input {tensor.name!r} has dtype {array.dtype.name}; {tensor.dtype} was expected"
        )
    check_shape(tensor, array.shape)
    return array.astype(tensor.np_dtype, copy=False)


def check_shape(tensor: Tensor, shape: Sequence[int]) -> None:
    """Refuse a shape [n, ...] that does not fit the declared row shape."""
    row = shape[1:]
    if len(shape) != len(tensor.shape) + 1 or any(
        not isinstance(want, Dim) and have != want
        for have, want in zip(row, tensor.shape, strict=True)
    ):
        raise InvalidRequest(
            f"input {tensor.name!r} has shape {list(shape)}; {tensor.describe_shape()} was expected"
        )
    for have, most in zip(row, tensor.max_shape, strict=True):
        if have > most:
            raise TooLarge(
                f"input {tensor.name!r} has shape {list(shape)}, larger than a slot holds:"
                f" {tensor.describe_shape()}"
            )


def _of_torch(tensor: Tensor, value: Any) -> Array:
    host = value.detach().cpu().resolve_neg()
    if str(host.dtype) == "torch.bfloat16":
        if tensor.dtype != "bfloat16":
            raise InvalidRequest(
                f"input {tensor.name!r} has dtype bfloat16; {tensor.dtype} was expected"
            )
        host = host.contiguous().view(__import__("torch").uint16)
    try:
        return np.asarray(host.numpy())
    except (TypeError, RuntimeError) as exc:  # float8, quantized, sparse, conjugated
        raise InvalidRequest(
            f"input {tensor.name!r} is a {host.layout} tensor of {host.dtype};"
            f" a dense one of {tensor.dtype} was expected"
        ) from exc


def _of_python(tensor: Tensor, value: Any) -> Array:
    if not isinstance(value, (list, tuple, int, float, bool)):
        raise InvalidRequest(
            f"input {tensor.name!r} is a {type(value).__name__};"
            f" an array {tensor.describe_shape()} of {tensor.dtype} was expected"
        )
    try:
        shape = np.array(value, dtype=object).shape
    except ValueError as exc:
        raise InvalidRequest(f"input {tensor.name!r}: the nested lists are ragged") from exc
    check_shape(tensor, shape)
    return from_numbers(tensor, value, shape)
