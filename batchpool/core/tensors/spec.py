"""Tensor specifications: what a model declares of its inputs, outputs and parameters.

A request is n rows: n is the first dimension of every tensor. The dimensions after n are the
row's shape, fixed or dynamic up to a maximum:

    Tensor("x", "float32", (4,))                      [n, 4]
    Tensor("ids", "int64", (Dim(max=512),), pad=0)    [n, 0..512], one size per row
    Tensor("ids", "int64", (Dim(max=512, min=1),))    [n, 1..512], no empty rows
    Tensor("text", "bytes", (), max_bytes=8192)       [n] byte strings
    Tensor("top_k", "int64", (), default=5)           as a parameter: one number per row
    Tensor("language", "bytes", max_bytes=8, default="en")   as a parameter: one string per row
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from batchpool.core.errors import ConfigError, InvalidRequest, TooLarge
from batchpool.core.frameworks import FRAMEWORKS
from batchpool.core.tensors.between_stages import FEATURES, PREDICTIONS
from batchpool.core.tensors.dims import Dim
from batchpool.core.tensors.dtypes import DTYPES, DType
from batchpool.core.tensors.labels import checked_labels
from batchpool.core.tensors.numbers import as_row_value, stored_number
from batchpool.core.tensors.strings import as_text_value
from batchpool.core.tensors.text import Text

__all__ = ["Dim", "ModelSpec", "Tensor"]


@dataclass(frozen=True)
class Tensor:
    """One tensor of a model, without the leading row dimension.

    name: as callers spell it.  dtype: numpy's name, or "bfloat16", or "bytes".  shape: the row's
    shape, ints and `Dim`s.  pad: the value that fills shorter rows of a batch.  max_bytes: the
    longest element of a "bytes" tensor.  default: the value of a parameter that a request does
    not set; of an input that it leaves out, the value of all its elements.  labels: of an output
    of a classifier, the name of each element of the row.  Raises ConfigError for a declaration that
    cannot work.
    """

    name: str
    dtype: str
    shape: tuple[int | Dim, ...] = ()
    pad: float = 0
    max_bytes: int | None = None
    default: Any = None
    labels: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise ConfigError(f"a tensor's name must be a word, not {self.name!r}")
        if self.dtype not in DTYPES:
            known = ", ".join(DTYPES)
            raise ConfigError(f"tensor {self.name!r}: unknown dtype {self.dtype!r}; known: {known}")
        if not isinstance(self.shape, (tuple, list)):
            raise ConfigError(
                f"tensor {self.name!r}: shape is {self.shape!r}; a tuple was expected, as (4,) for"
                " four numbers a row or () for one"
            )
        object.__setattr__(self, "shape", tuple(self.shape))
        for dim in self.shape:
            if not isinstance(dim, Dim) and (not isinstance(dim, int) or dim < 0):
                raise ConfigError(
                    f"tensor {self.name!r}: bad dimension {dim!r} in its shape; a size, or"
                    " bp.Dim(max) for one that varies, was expected"
                )
        if self.dtype == "bytes" and self.max_bytes is None:
            raise ConfigError(
                f"tensor {self.name!r}: dtype 'bytes' needs max_bytes, the longest element, as"
                " max_bytes=8192"
            )
        if self.dtype != "bytes" and self.max_bytes is not None:
            raise ConfigError(
                f"tensor {self.name!r}: max_bytes belongs to dtype 'bytes', and this is"
                f" {self.dtype!r}; leave it out"
            )
        if self.is_bytes and isinstance(self.default, bytes):
            try:  # it is told to front ends and callers as JSON
                object.__setattr__(self, "default", self.default.decode())
            except UnicodeDecodeError:
                raise ConfigError(
                    f"tensor {self.name!r}: default {self.default!r} is not UTF-8 text"
                ) from None
        if self.max_bytes is not None and self.max_bytes < 1:
            raise ConfigError(f"tensor {self.name!r}: max_bytes must be at least 1")
        if not self.is_bytes:
            try:
                stored_number(self.name, self.element, self.pad)
            except InvalidRequest:
                raise ConfigError(
                    f"tensor {self.name!r}: pad {self.pad!r} does not fit {self.dtype}"
                ) from None
        elements = None if self.is_bytes or self.dynamic else math.prod(self.max_shape)
        object.__setattr__(self, "labels", checked_labels(self.name, self.labels, elements))

    @property
    def is_bytes(self) -> bool:
        return self.dtype == "bytes"

    @cached_property
    def element(self) -> DType:
        """The dtype of the elements, with its wire name and storage."""
        return DTYPES[self.dtype]

    @property
    def wire_dtype(self) -> str:
        """The wire protocol's name of the dtype, as "FP32"."""
        return self.element.wire

    @cached_property
    def np_dtype(self) -> np.dtype[Any]:
        """The storage dtype: native numpy; uint16 for bfloat16; object for bytes."""
        return self.element.storage

    @cached_property
    def stored_pad(self) -> Any:
        """`pad` as the storage dtype holds it: a bfloat16's bits; b"" for bytes."""
        return b"" if self.is_bytes else stored_number(self.name, self.element, self.pad)

    @cached_property
    def max_shape(self) -> tuple[int, ...]:
        """The row's shape with every dynamic dimension at its maximum."""
        return tuple(d.max if isinstance(d, Dim) else d for d in self.shape)

    @cached_property
    def dynamic(self) -> tuple[int, ...]:
        """The positions of the dynamic dimensions in the row's shape."""
        return tuple(i for i, d in enumerate(self.shape) if isinstance(d, Dim))

    @property
    def default_in_json(self) -> Any:
        """`default` as JSON carries it: a byte string as text."""
        value = self.default
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def scalar(self, value: Any) -> Any:
        """One value, as of a parameter, in its stored form: a number, the bits of a bfloat16, or
        `bytes`.

        Raises InvalidRequest for a value that is no scalar or does not fit the dtype, TooLarge
        for a string of more than `max_bytes` bytes.
        """
        if self.max_bytes is not None:
            return as_text_value(self.name, self.max_bytes, value)
        return as_row_value(self.name, self.element, value)

    @property
    def sizes_name(self) -> str:
        """The name of the tensor that tells the rows' sizes."""
        return f"{self.name}.sizes"

    def row_sizes(self) -> Tensor:
        """The tensor that tells the sizes of each row: int64 [n, dynamic dimensions]."""
        return Tensor(self.sizes_name, "int64", (len(self.dynamic),))

    def is_plain(self, array: Any) -> bool:
        """True for an array [n, *row shape] of a fixed tensor, which needs no conversion."""
        return (
            type(array) is np.ndarray
            and array.dtype is self.np_dtype
            and not self.dynamic
            and array.ndim == 1 + len(self.shape)
            and array.shape[1:] == self.shape
        )

    @cached_property
    def min_shape(self) -> tuple[int, ...]:
        """The row's shape with every dynamic dimension at its least size."""
        return tuple(d.least if isinstance(d, Dim) else d for d in self.shape)

    @property
    def wire_shape(self) -> list[int]:
        """The shape as metadata shows it: -1 for the rows and for each dynamic dimension."""
        return [-1, *(-1 if isinstance(d, Dim) else d for d in self.shape)]

    @property
    def row_bytes(self) -> int:
        """The most bytes that one row can have."""
        each = self.max_bytes if self.max_bytes is not None else self.np_dtype.itemsize
        return math.prod(self.max_shape) * each

    def describe_shape(self) -> str:
        """The shape for messages, as "[n, 4]" or "[n, 0..512]"."""
        dims = [f"{d.least}..{d.max}" if isinstance(d, Dim) else str(d) for d in self.shape]
        return "[" + ", ".join(["n", *dims]) + "]"

    def describe_slot(self) -> str:
        """As `describe_shape` without least sizes, which move no byte of a slot."""
        dims = [f"0..{d.max}" if isinstance(d, Dim) else str(d) for d in self.shape]
        return "[" + ", ".join(["n", *dims]) + "]"


@dataclass(frozen=True)
class ModelSpec:
    """The declaration of a model: its name, framework and tensors.

    features: what `preprocess` makes of the inputs and `infer` reads instead of them; () for a
    model without that stage. kept_inputs: names of the inputs that `infer` reads besides.
    predictions: what `infer` makes instead of the outputs, and `postprocess` makes these of; () for
    a model without that stage. kept_tensors: names of the inputs and features that `postprocess`
    reads besides. output_noun: what messages call an output: one of a stage may be a feature or a
    prediction of the model. generates: the model is a `Generator`: its first input is the prompt,
    its first output the tokens, of which a running row has as many as `size.out` says. text: of a
    generator whose tokens are text. sized_by_length: names of the inputs of bytes whose length is a
    size of the row, as a dynamic dimension is (`fused_spec` of core/tensors/stages.py).

    Raises ConfigError for an unknown framework, a name that is used twice, no input or output,
    a parameter that is no scalar, a feature or prediction with a default or labels, and an input's
    default that cannot work.
    """

    name: str
    framework: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    parameters: tuple[Tensor, ...] = ()
    features: tuple[Tensor, ...] = ()
    kept_inputs: tuple[str, ...] = ()
    predictions: tuple[Tensor, ...] = ()
    kept_tensors: tuple[str, ...] = ()
    output_noun: str = "output"
    generates: bool = False
    text: Text | None = None
    sized_by_length: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.framework not in FRAMEWORKS:
            known = " or ".join(map(repr, FRAMEWORKS))
            raise ConfigError(
                f"model {self.name!r}: framework must be {known}, not {self.framework!r}"
            )
        if not self.inputs or not self.outputs:
            lacks = "output" if self.inputs else "input"
            raise ConfigError(
                f"model {self.name!r}: needs at least one input and one output; it has no {lacks}:"
                f" expected {lacks}s = [bp.Tensor(...), ...]"
            )
        for kind in ("inputs", "outputs"):
            names = [t.name for t in getattr(self, kind)]
            names += [p.name for p in self.parameters] if kind == "inputs" else []
            for name in names:
                if names.count(name) > 1:
                    raise ConfigError(f"model {self.name!r}: {name!r} stands twice in its {kind}")
            for tensor in getattr(self, kind):
                if tensor.dynamic and tensor.sizes_name in names:
                    raise ConfigError(
                        f"model {self.name!r}: {tensor.sizes_name!r} among its {kind} is the name"
                        f" of the sizes of {tensor.name!r}; give it another name"
                    )
        for parameter in self.parameters:
            if parameter.shape:
                raise ConfigError(
                    f"model {self.name!r}: parameter {parameter.name!r} has shape"
                    f" {list(parameter.shape)}; one number or string was expected: shape ()"
                )
            if parameter.default is not None:
                try:
                    parameter.scalar(parameter.default)
                except (InvalidRequest, TooLarge) as exc:
                    raise ConfigError(f"model {self.name!r}: its default: {exc}") from None
        for tensor in (*self.inputs, *self.parameters):
            if tensor.labels:
                raise ConfigError(
                    f"model {self.name!r}: {tensor.name!r} has labels, which belong to an output"
                )
        for tensor in self.outputs:
            if tensor.default is not None:
                raise ConfigError(f"model {self.name!r}: output {tensor.name!r} has a default")
        self._check_between_stages()
        self._check_optional_inputs()

    def _check_between_stages(self) -> None:
        inputs, parameters, features = (
            [tensor.name for tensor in tensors]
            for tensors in (self.inputs, self.parameters, self.features)
        )
        FEATURES.check(self.name, self.features, self.kept_inputs, {"input": inputs}, parameters)
        earlier = {"input": inputs, **({"feature": features} if features else {})}
        PREDICTIONS.check(self.name, self.predictions, self.kept_tensors, earlier, parameters)

    def _check_optional_inputs(self) -> None:
        required = [tensor for tensor in self.inputs if tensor.default is None]
        if not required:
            raise ConfigError(
                f"model {self.name!r}: every input has a default; one without, which tells the"
                " number of rows, was expected"
            )
        known = {dim.name for t in required for dim in t.shape if isinstance(dim, Dim)} - {""}
        for tensor in self.inputs:
            if tensor.default is None:
                continue
            what = f"model {self.name!r}: input {tensor.name!r} has the default {tensor.default!r}"
            try:
                tensor.scalar(tensor.default)
            except (InvalidRequest, TooLarge):
                raise ConfigError(
                    f"{what}; one {tensor.dtype}, which fills the row, was expected"
                ) from None
            if any(isinstance(dim, Dim) and dim.name not in known for dim in tensor.shape):
                raise ConfigError(
                    f"{what}, so each of its dynamic dimensions must have the name of one of an"
                    " input without a default, whose size it takes"
                )

    @cached_property
    def has_dynamic_inputs(self) -> bool:
        """True if an input has a dynamic dimension."""
        return any(tensor.dynamic for tensor in self.inputs)

    @cached_property
    def has_least_sizes(self) -> bool:
        """True if a dynamic dimension of an input may not be empty."""
        dims = (dim for tensor in self.inputs for dim in tensor.shape)
        return any(isinstance(dim, Dim) and dim.least for dim in dims)

    def to_wire(self) -> dict[str, Any]:
        """The spec as lists, dicts, numbers and text, for control messages."""
        # A client of an earlier version does not know what is left out where it is empty.
        made = [kind for kind in _KEPT if getattr(self, kind)]
        kinds = (*_CALLERS, *made)
        generator: dict[str, Any] = {"generates": True} if self.generates else {}
        if self.text is not None:
            generator["text"] = self.text.to_wire()
        lengths = {"sized_by_length": list(self.sized_by_length)} if self.sized_by_length else {}
        return {
            "name": self.name,
            "framework": self.framework,
            **{kind: [_tensor_to_wire(t) for t in getattr(self, kind)] for kind in kinds},
            **{_KEPT[kind]: list(getattr(self, _KEPT[kind])) for kind in made},
            **generator,
            **lengths,
        }

    @classmethod
    def from_wire(cls, form: Mapping[str, Any]) -> ModelSpec:
        """The spec that `to_wire` has described."""
        inputs, outputs, parameters, features, predictions = (
            tuple(_tensor_from_wire(t) for t in form.get(kind, ())) for kind in (*_CALLERS, *_KEPT)
        )
        kept_inputs, kept_tensors = (tuple(form.get(kept, ())) for kept in _KEPT.values())
        text = Text.from_wire(form["text"]) if "text" in form else None
        return cls(
            form["name"], form["framework"], inputs, outputs, parameters, features, kept_inputs,
            predictions, kept_tensors, generates=form.get("generates", False), text=text,
            sized_by_length=tuple(form.get("sized_by_length", ())),
        )  # fmt: skip


_CALLERS = ("inputs", "outputs", "parameters")  # the lists that callers see
# The lists of tensors between stages, each with the names of what else its reader reads.
_KEPT = {"features": "kept_inputs", "predictions": "kept_tensors"}


def _tensor_to_wire(tensor: Tensor) -> dict[str, Any]:
    # A client of an earlier version does not know labels, and reads no third value of a dimension.
    shape = [_dim_to_wire(d) if isinstance(d, Dim) else d for d in tensor.shape]
    labels = {"labels": list(tensor.labels)} if tensor.labels else {}
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": shape,
        "pad": tensor.pad,
        "max_bytes": tensor.max_bytes,
        "default": tensor.default,
        **labels,
    }


def _tensor_from_wire(form: Mapping[str, Any]) -> Tensor:
    shape = tuple(d if isinstance(d, int) else Dim(*d[:3]) for d in form["shape"])
    return Tensor(**{**form, "shape": shape})


def _dim_to_wire(dim: Dim) -> list[Any]:
    return [dim.max, dim.name] if dim.min is None else [dim.max, dim.name, dim.min]
