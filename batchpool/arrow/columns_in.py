"""Columns of Arrow as the rows of a tensor: views of Arrow's memory where that is possible.

The arrays come from outside: the caller has validated them in full. Every error names the column,
and the row where one is to blame.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from batchpool.arrow.buffers import byte_strings, flat, is_number, nulls, numbers, text_lengths
from batchpool.arrow.types import BF16, DATATYPE, arrow, value_type
from batchpool.core.errors import InvalidRequest, TooLarge
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Dim, Tensor


class ColumnReader:
    """Reads the column of one tensor.

    most_bytes: of texts that a dictionary or views let stand for more than was sent. strict: the
    type of the elements must be the tensor's; else numbers are given as they are.
    """

    def __init__(self, tensor: Tensor, most_bytes: int, *, strict: bool = True) -> None:
        self.tensor = tensor
        self._most_bytes = most_bytes
        self._strict = strict

    def rows(self, field: Any, column: Any) -> Array | list[Array]:
        """An array [n, *row shape], or a list of n where rows differ in size.

        InvalidRequest for another type, for a null, and for rows of another shape; TooLarge for
        elements that are longer than the tensor takes.
        """
        pa = arrow()
        tensor = self.tensor
        array = self._plain(column)
        shape: tuple[int, ...] = ()
        if isinstance(array.type, pa.FixedShapeTensorType):
            permutation = array.type.permutation
            if permutation is not None and list(permutation) != sorted(permutation):
                raise self._wrong(
                    f"is a tensor with the permutation {list(permutation)}; one in row-major order"
                    " was expected"
                )
            shape, array = tuple(array.type.shape), array.storage
            self._check_nulls(array)
            return self._shaped(field, flat(array), len(array), shape)
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        self._check_nulls(array)
        if not tensor.shape:
            return self._elements(field, array)
        if pa.types.is_struct(array.type):
            return self._variable(field, array)
        if not _is_list(array.type):
            raise self._wrong(f"has type {_brief(array.type)}; {self._expected()} was expected")
        lengths = self._lengths(array)
        values, inner = self._uniform(flat(array))
        alike = len(lengths) < 2 or bool((lengths == lengths[0]).all())
        if alike:
            first = int(lengths[0]) if len(lengths) else 0
            return self._shaped(field, values, len(array), (first, *inner))
        return self._ragged(field, values, lengths, inner)

    def _plain(self, column: Any) -> Any:
        """The column as one array without dictionary."""
        pa = arrow()
        array = column
        if isinstance(column, pa.ChunkedArray):  # joining one chunk would copy it
            array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if pa.types.is_dictionary(array.type):
            self._check_nulls(array)
            if _is_text(array.type.value_type):
                lengths = pa.compute.binary_length(array.dictionary)
                self._check_total(pa.compute.sum(lengths.take(array.indices)).as_py() or 0)
            elif not pa.types.is_primitive(array.type.value_type):
                raise self._wrong(f"has type {_brief(array.type)}; {self._expected()} was expected")
            array = array.dictionary_decode()
        return array

    def _check_total(self, size: int) -> None:
        if size > self._most_bytes:
            raise TooLarge(
                f"{self._what}: its texts have {size} bytes, written out; at most"
                f" {self._most_bytes} are taken for a body of this size"
            )

    def _check_nulls(self, array: Any, rows_of: Array | None = None) -> None:
        if array.null_count:
            at = int(np.argmax(nulls(array)))
            row = at if rows_of is None else int(rows_of[at])
            raise self._wrong(f"row {row} is null; a value was expected, or no such row")

    def _lengths(self, array: Any) -> Array:
        pa = arrow()
        if pa.types.is_fixed_size_list(array.type):
            return np.full(len(array), array.type.list_size, np.int64)
        return numbers(array.value_lengths()).astype(np.int64)

    def _uniform(self, array: Any) -> tuple[Any, tuple[int, ...]]:
        """The elements of nested lists that all have one shape, and that shape."""
        pa = arrow()
        shape: list[int] = []
        while _is_list(array.type):
            self._check_nulls(array)
            lengths = self._lengths(array)
            if len(lengths) and (lengths != lengths[0]).any():
                raise self._wrong(
                    "has nested lists of different lengths; for rows with several dynamic"
                    " dimensions a struct of `data` and `shape` was expected"
                )
            at = len(shape) + 1
            if pa.types.is_fixed_size_list(array.type):
                shape.append(array.type.list_size)
            elif len(lengths):
                shape.append(int(lengths[0]))
            else:  # of nothing: as the tensor has it
                shape.append(self.tensor.max_shape[at] if at < len(self.tensor.shape) else 0)
            array = flat(array)
        return array, tuple(shape)

    def _shaped(self, field: Any, values: Any, n: int, shape: tuple[int, ...]) -> Array:
        """Rows of one shape, which is the tensor's or, flat, has as many elements."""
        tensor = self.tensor
        want = tensor.max_shape
        if not tensor.dynamic and shape != want and len(shape) == 1 and shape[0] == math.prod(want):
            shape = want
        fits = len(shape) == len(tensor.shape) and all(
            isinstance(size, Dim) or have == size
            for have, size in zip(shape, tensor.shape, strict=True)
        )
        if not fits:
            raise self._wrong(f"has rows of shape {list(shape)}; {self._expected()} was expected")
        return self._elements(field, values).reshape(n, *shape)

    def _ragged(
        self, field: Any, values: Any, lengths: Array, inner: tuple[int, ...]
    ) -> list[Array]:
        tensor = self.tensor
        if not isinstance(tensor.shape[0], Dim) or len(inner) + 1 != len(tensor.shape):
            size = tensor.shape[0]
            wrong = int((lengths != size).argmax()) if isinstance(size, int) else 0
            raise self._wrong(
                f"row {wrong} has {int(lengths[wrong])} elements; {self._expected()} was expected"
            )
        rows = self._elements(field, values).reshape(int(lengths.sum()), *inner)
        return np.split(rows, np.cumsum(lengths[:-1]))

    def _variable(self, field: Any, array: Any) -> list[Array]:
        """A struct of `data` and `shape`."""
        pa = arrow()
        names = [array.type.field(i).name for i in range(array.type.num_fields)]
        tensor = self.tensor
        if sorted(names) != ["data", "shape"] or not tensor.dynamic:
            raise self._wrong(f"has type {_brief(array.type)}; {self._expected()} was expected")
        parts = array.flatten()
        elements, shapes = parts[names.index("data")], parts[names.index("shape")]
        self._check_nulls(elements)
        self._check_nulls(shapes)
        rank = len(tensor.shape)
        if (
            not pa.types.is_fixed_size_list(shapes.type)
            or shapes.type.list_size != rank
            or not pa.types.is_int32(shapes.type.value_type)
            or not _is_list(elements.type)
        ):
            raise self._wrong(f"has type {_brief(array.type)}; {self._expected()} was expected")
        sizes = flat(shapes)
        self._check_nulls(sizes)
        each = numbers(sizes).reshape(len(array), rank).astype(np.int64)
        lengths = self._lengths(elements)
        every = self._elements(field, flat(elements))
        too_large = ((each < 0) | (each > np.array(tensor.max_shape))).any(axis=1)
        if too_large.any():
            row = int(too_large.argmax())
            raise TooLarge(
                f"{self._what}: row {row} has shape {each[row].tolist()};"
                f" {self._expected()} was expected"
            )
        wrong = each.prod(axis=1) != lengths
        if wrong.any():
            row = int(wrong.argmax())
            raise self._wrong(
                f"row {row} has {int(lengths[row])} elements and the shape {each[row].tolist()}"
            )
        rows = np.split(every, np.cumsum(lengths[:-1])) if len(array) else []
        return [row.reshape(shape) for row, shape in zip(rows, each.tolist(), strict=True)]

    def _elements(self, field: Any, array: Any) -> Array:
        """Numbers, or `bytes` in an object array, without nulls and of the right type."""
        self._check_nulls(array)
        tensor = self.tensor
        if tensor.is_bytes:
            if not _is_text(array.type):
                raise self._wrong(f"has type {_brief(array.type)}; {self._expected()} was expected")
            return self._texts(array)
        if self._strict:
            marked = (field.metadata or {}).get(DATATYPE) == BF16
            if array.type != value_type(tensor.dtype) or marked != tensor.element.is_bfloat16:
                more = " with the metadata batchpool.datatype=BF16" if marked else ""
                raise self._wrong(
                    f"has elements of type {_brief(array.type)}{more}; {self._expected()} was"
                    " expected"
                )
        elif not is_number(array.type):
            raise self._wrong(f"has type {_brief(array.type)}; {self._expected()} was expected")
        return numbers(array)

    def _texts(self, array: Any) -> Array:
        pa = arrow()
        lengths = text_lengths(array)
        if pa.types.is_binary_view(array.type) or pa.types.is_string_view(array.type):
            self._check_total(int(lengths.sum(dtype=np.int64)))
        most = self.tensor.max_bytes or 0
        if len(lengths) and lengths.max() > most:
            at = int((lengths > most).argmax())
            raise TooLarge(
                f"{self._what}: element {at} has {int(lengths[at])} bytes; at most {most} fit"
                " (max_bytes in the model)"
            )
        return byte_strings(array)

    @property
    def _what(self) -> str:
        return f"column {self.tensor.name!r}"

    def _wrong(self, text: str) -> InvalidRequest:
        return InvalidRequest(
            f"{self._what} {text}" if text[0] in "hi" else f"{self._what}: {text}"
        )

    def _expected(self) -> str:
        tensor = self.tensor
        kind = "utf8 or binary" if tensor.is_bytes else str(value_type(tensor.dtype))
        if tensor.element.is_bfloat16:
            kind = "uint16 with the metadata batchpool.datatype=BF16"
        return f"{kind}, {tensor.describe_shape()}," if tensor.shape else kind


def _is_list(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_text(kind: Any) -> bool:
    types = arrow().types
    return any(
        test(kind)
        for test in (
            types.is_string, types.is_large_string, types.is_string_view, types.is_binary,
            types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary,
        )
    )  # fmt: skip


def _brief(kind: Any) -> str:
    text = str(kind)
    return text if len(text) <= 80 else text[:77] + "..."
