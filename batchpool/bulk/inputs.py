"""Columns of a chunk as the inputs of a model: which column is which, and their values."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from batchpool.arrow.buffers import numbers
from batchpool.arrow.columns_in import ColumnReader
from batchpool.bulk.chunk import Chunk
from batchpool.bulk.joined import check_joined, joined, parts_of
from batchpool.core.errors import ConfigError, InvalidRequest, TooLarge
from batchpool.core.tensors.columns import rows_in_order
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.packed_strings import strings_of_arrow
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.core.text.escape import cut

_EXACT_BELOW = 2.0**53  # whole floats from here on may have lost digits
_MOST_TEXT_BYTES = 1 << 40  # of a file of the user's own
_MOST_LISTED, _SHOWN = 20, 80  # names of columns in a message, and characters of each
NULL = "is null or missing; a value was expected"


def mapped_columns(
    spec: ModelSpec, names: Sequence[str] | None, given: Mapping[str, str]
) -> dict[str, str]:
    """{input: column} of a run. names: of the columns there are; None where rows have their own.

    Inputs that are not given take the column of their name; the only input of a model takes the
    only column, too, or else the column `body`. A given name may be several columns, joined by
    `+`. ConfigError for what cannot be.
    """
    inputs = {tensor.name: tensor for tensor in spec.inputs}
    for name in given:
        if name not in inputs:
            known = ", ".join(map(repr, inputs))
            raise ConfigError(f"--map: model {spec.name!r} has no input {name!r}; it has {known}")
    found = dict(given)
    free = [name for name, tensor in inputs.items() if name not in found]
    required = [name for name in free if inputs[name].default is None]
    for name in free:
        if names is None or name in names:
            found[name] = name
        elif required == [name] and (len(names) == 1 or "body" in names):
            found[name] = names[0] if len(names) == 1 else "body"
    for name, column in found.items():
        if names is None:
            continue
        _check_parts(inputs[name], column, names, f"{_listed(names)} are")
    for name in required:
        if name not in found:
            listed = _listed(names or ())
            raise ConfigError(
                f"no column for the input {name!r} of model {spec.name!r}: the input has the"
                f" columns {listed}; say which with --map {name}=COLUMN{_or_several(inputs[name])}"
            )
    return {name: found[name] for name in inputs if name in found}


def _listed(names: Collection[str]) -> str:
    """Names of columns for a message, which may be as many as there are rows."""
    first = ", ".join(repr(cut(name, _SHOWN)) for name in islice(names, _MOST_LISTED))
    more = len(names) - _MOST_LISTED
    return f"{first} and {more:,} more" if more > 0 else first


def _check_parts(tensor: Tensor, column: str, known: Collection[str], there_are: str) -> None:
    """ConfigError for a name of `--map` that stands for columns which are not there, or that the
    input does not take. there_are: the columns, for the message."""
    parts = parts_of(column, known)
    for part in parts:
        if part not in known:
            raise ConfigError(
                f"--map {tensor.name}={column}: there is no column {part!r}; {there_are}"
            )
    check_joined(tensor, column, parts)


def _or_several(tensor: Tensor) -> str:
    """A note for an input whose rows are vectors, which a table often has in several columns."""
    if len(tensor.shape) != 1:
        return ""
    return f", or --map {tensor.name}=A+B+C for columns of one element each"


def check_first_rows(
    spec: ModelSpec, columns: Mapping[str, str], keep: Sequence[str], chunk: Chunk
) -> None:
    """ConfigError where no row of the first chunk has a column that is needed, as of JSON Lines,
    whose rows have their own columns: then it is the name that is wrong."""
    if not chunk.columns:
        return  # no row of it can be read, which is told of each one
    listed = _listed(chunk.columns)
    rows = "the first row has" if chunk.n == 1 else f"the first {chunk.n:,} rows have"
    for name in keep:
        if name not in chunk.columns:
            raise ConfigError(f"--keep: there is no column {name!r}; {rows} {listed}")
    for tensor in spec.inputs:
        column = columns.get(tensor.name)
        if column is None or column in chunk.columns:
            continue
        if column == tensor.name:
            if tensor.default is None:
                raise ConfigError(
                    f"no column for the input {tensor.name!r} of model {spec.name!r}: {rows}"
                    f" {listed}; say which with --map {tensor.name}=COLUMN{_or_several(tensor)}"
                )
            continue
        _check_parts(tensor, column, chunk.columns, f"{rows} {listed}")


class InputColumns:
    """The inputs of a chunk: values as the client takes them, and the rows that have none."""

    def __init__(self, spec: ModelSpec, columns: Mapping[str, str]) -> None:
        self._tensors = {tensor.name: tensor for tensor in spec.inputs}
        self._columns = columns

    def read(self, chunk: Chunk) -> tuple[dict[str, Any], dict[int, str]]:
        """({input: n values}, why rows cannot be sent by their place). The value of such a row
        stands for nothing."""
        why = {at: message for at, (message, _) in chunk.unread.items()}
        values: dict[str, Any] = {}
        for name, column in self._columns.items():
            parts = parts_of(column, chunk.columns)
            if len(parts) > 1:
                columns = [_column(chunk, part) for part in parts]
                values[name], nulls_in = joined(self._tensors[name], columns, _values)
                for at, part in nulls_in:
                    why.setdefault(at, f"column {parts[part]!r} {NULL}")
                continue
            found = chunk.columns.get(column)
            if found is None:
                if self._tensors[name].default is not None and name == column:
                    continue  # no row of the chunk has this column
                found = [None] * chunk.n
            values[name], missing = _values(self._tensors[name], found)
            for at in missing:
                why.setdefault(at, f"column {column!r} {NULL}")
        return values, why

    def said_of(self, message: str) -> str:
        """The message about an input, with the column that it was read from."""
        for name, column in self._columns.items():
            if name != column and f"input {name!r}" in message:
                return message.replace(f"input {name!r}", f"input {name!r} (column {column!r})", 1)
        return message


def _column(chunk: Chunk, name: str) -> Any:
    found = chunk.columns.get(name)
    return [None] * chunk.n if found is None else found


def _values(tensor: Tensor, column: Any) -> tuple[Any, list[int]]:
    """The values of a column, n rows that can be sliced, and the places of nulls among them."""
    if isinstance(column, np.ndarray):
        return _converted(tensor, column), []
    if isinstance(column, list):
        if not tensor.is_bytes:
            column = [_number(tensor, value) for value in column]
        return column, [at for at, value in enumerate(column) if value is None]
    if tensor.is_bytes and not tensor.shape:
        strings = strings_of_arrow(tensor.name, column)
        if strings is not None:  # the client says of each row whether it is too long
            return strings, _null_places(column)
    if column.null_count:
        return column.to_pylist(), _null_places(column)
    try:
        read = ColumnReader(tensor, _MOST_TEXT_BYTES, strict=False).rows(_NO_FIELD, column)
    except (InvalidRequest, TooLarge):
        return column.to_pylist(), []  # the client says of each row what is wrong
    if isinstance(read, list):
        return [_converted(tensor, row, rank=0) for row in read], []
    return _converted(tensor, read), []


def _null_places(column: Any) -> list[int]:
    if not column.null_count:
        return []
    is_null = column.is_null()
    whole = is_null.combine_chunks() if hasattr(is_null, "chunks") else is_null
    places: list[int] = np.flatnonzero(numbers(whole)).tolist()
    return places


def _converted(tensor: Tensor, array: Array, rank: int = 1) -> Any:
    """Numbers in the dtype of the tensor where all of them fit; else as they are."""
    if tensor.is_bytes or array.dtype == tensor.np_dtype:
        return array
    try:
        return rows_in_order(tensor, _Numbers(array))
    except InvalidRequest:
        return array.tolist() if rank else array


class _Numbers:
    """An array that is no one's declaration of its dtype, like a column of a data frame."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self._array


class _NoField:
    metadata: Mapping[bytes, bytes] = {}


_NO_FIELD = _NoField()


def _whole(text: str) -> int | float:
    """A whole number that is written as 2.0, as data frames write it beside missing ones."""
    found = float(text)
    return int(found) if found.is_integer() and abs(found) < _EXACT_BELOW else found


def _number(tensor: Tensor, value: Any) -> Any:
    """A number, or lists of numbers, that a CSV file has as a text; else the value as it is."""
    if type(value) is not str:
        return value
    text = value.strip()
    if not text:
        return None
    if "_" in text:
        return value  # Python alone reads 1_000 as a number
    try:
        if text[0] == "[":
            return msgspec.json.decode(text)
        if tensor.np_dtype.kind == "b":
            return {"true": True, "false": False, "1": True, "0": False}.get(text.lower(), value)
        if tensor.np_dtype.kind in "iu" and not tensor.element.is_bfloat16:
            return int(text) if text.lstrip("+-").isdigit() else _whole(text)
        found = float(text)
        # Digits that are too many for a float are no infinity, which is written as inf.
        return value if math.isinf(found) and "n" not in text.lower() else found
    except (ValueError, msgspec.DecodeError):
        return value
