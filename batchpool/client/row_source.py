"""Rows that `map` reads as it goes: of columns or of an iterable, a window of them at a time.

A source is asked for at most so many rows and reads no further, so that what a caller's iterable
has made, and nobody has got the result of, is bounded.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from batchpool.client.call import named_inputs
from batchpool.client.meant import meant
from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec


@dataclass(slots=True)
class RowWindow:
    """Neighbouring rows as they were read: {input: array or list of n rows}.

    outputs_to: an array [n, *row shape] for each output of the call that is fixed numbers, which is
    written where all rows are good; none of them, or all.
    """

    tensors: Mapping[str, Any]
    n: int
    outputs_to: Mapping[str, Array] = field(default_factory=dict)


class RowSource(Protocol):
    """Where the rows of a `map` come from. holds_rows: they are in memory, and to take the rows of
    several windows at once reads none before its time."""

    holds_rows: bool

    async def take(self, most: int, spec: ModelSpec) -> RowWindow | None:
        """The next rows, at most so many; None at the end. spec: of the model that reads them."""


class Columns:
    """Rows of one column for each input: an array or a sequence, or any iterable of row values."""

    holds_rows = False

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = {name: _column(name, value) for name, value in columns.items()}
        self._at = 0

    async def take(self, most: int, spec: ModelSpec) -> RowWindow | None:
        start, stop = self._at, self._at + most
        found = {
            name: list(itertools.islice(column, most))
            if isinstance(column, Iterator)
            else column[start:stop]
            for name, column in self._columns.items()
        }
        counts = {name: len(part) for name, part in found.items()}
        if len(set(counts.values())) > 1:
            (short, least), (long, _) = (
                choose(counts.items(), key=lambda pair: pair[1]) for choose in (min, max)
            )
            raise InvalidRequest(
                f"input {short!r} ended after {start + least} rows, but input {long!r} has more;"
                " as many of each were expected"
            )
        n = next(iter(counts.values()), 0)
        self._at += n
        return RowWindow(found, n) if n else None


class Rows:
    """Rows of an iterable: a dict {input: row value} each, or the value of the only input."""

    holds_rows = False

    def __init__(self, rows: Iterator[Any]) -> None:
        self._rows = rows
        self._left: list[Mapping[str, Any]] = []  # read, and with other names than those before
        self._read = 0

    async def take(self, most: int, spec: ModelSpec) -> RowWindow | None:
        rows = self._left
        lone = only_input(spec)
        for row in itertools.islice(self._rows, most - len(rows)):
            rows.append(self._named(row, lone, spec))
        return self._cut()

    def _named(self, row: Any, lone: str | None, spec: ModelSpec) -> Mapping[str, Any]:
        self._read += 1
        if isinstance(row, Mapping):
            return row
        if lone is None:
            names = ", ".join(repr(tensor.name) for tensor in spec.inputs)
            raise InvalidRequest(
                f"row {self._read - 1} is a {type(row).__name__}, and model {spec.name!r} has the"
                f" inputs {names}; a dict of them was expected"
            )
        return {lone: row}

    def _cut(self) -> RowWindow | None:
        """The first rows that were read, as far as they have the same names."""
        rows = self._left
        if not rows:
            return None
        names = rows[0].keys()
        n = next((i for i, row in enumerate(rows) if row.keys() != names), len(rows))
        self._left = rows[n:]
        return RowWindow({name: [row[name] for row in rows[:n]] for name in names}, n)


class AsyncRows(Rows):
    """As `Rows`, of an asynchronous iterable."""

    def __init__(self, rows: AsyncIterator[Any]) -> None:
        super().__init__(iter(()))
        self._later = rows

    async def take(self, most: int, spec: ModelSpec) -> RowWindow | None:
        lone = only_input(spec)
        while len(self._left) < most:
            try:
                row = await anext(self._later)
            except StopAsyncIteration:
                break
            self._left.append(self._named(row, lone, spec))
        return self._cut()


def only_input(spec: ModelSpec) -> str | None:
    """The name of the input whose value stands for a row; None where it takes several."""
    required = [tensor.name for tensor in spec.inputs if tensor.default is None]
    return required[0] if len(required) == 1 else None


class Lone:
    """As `Columns`, of one array, for the only input of the model."""

    holds_rows = False

    def __init__(self, array: Any) -> None:
        self._array = array
        self._columns: Columns | None = None

    async def take(self, most: int, spec: ModelSpec) -> RowWindow | None:
        if self._columns is None:
            name = only_input(spec)
            if name is None:
                names = ", ".join(repr(tensor.name) for tensor in spec.inputs)
                raise InvalidRequest(
                    f"one array came for model {spec.name!r}, which has the inputs {names}; an"
                    " array for each, by name, was expected"
                )
            self._columns = Columns({name: self._array})
        return await self._columns.take(most, spec)


def source_of(inputs: Any, tensors: Mapping[str, Any]) -> RowSource:
    """The source of a call's arguments: columns by name, one array, or an iterable of rows.

    InvalidRequest for what is none of these.
    """
    if inputs is None or isinstance(inputs, Mapping) or hasattr(inputs, "columns"):
        columns = named_inputs(inputs, tensors)
        if not columns:
            raise InvalidRequest("no rows came; columns by name or an iterable was expected")
        return Columns(columns)
    if tensors:
        raise InvalidRequest(
            f"rows came together with the column {next(iter(tensors))!r}; one of them was expected"
            f"{meant(next(iter(tensors)), 'map')}"
        )
    if isinstance(inputs, (str, bytes, bytearray)):
        raise InvalidRequest(
            f"the rows are one {type(inputs).__name__}; an iterable of them was expected"
        )
    if isinstance(inputs, np.ndarray) or hasattr(inputs, "detach"):
        return Lone(inputs)
    if hasattr(inputs, "__aiter__"):
        return AsyncRows(aiter(inputs))
    if not hasattr(inputs, "__iter__"):
        raise InvalidRequest(
            f"the rows are a {type(inputs).__name__}; columns by name, or an iterable of rows,"
            " were expected"
        )
    return Rows(iter(inputs))


def _column(name: str, value: Any) -> Any:
    """A column that is cut by slices, or an iterator."""
    if isinstance(value, (str, bytes, bytearray, Mapping)) or not hasattr(value, "__iter__"):
        raise InvalidRequest(
            f"input {name!r} is a {type(value).__name__}; an array or an iterable with a value for"
            f" each row was expected{meant(name, 'map')}"
        )
    if hasattr(value, "iloc"):
        return value.iloc
    if hasattr(value, "__getitem__") and hasattr(value, "__len__"):
        return value
    return iter(value)
