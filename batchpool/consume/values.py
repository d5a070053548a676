"""Values of records: what a record says of its row, and a row's outputs as a record's value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from batchpool.bulk.inputs import mapped_columns
from batchpool.bulk.writers import readable_rows
from batchpool.client.row_source import only_input
from batchpool.core.errors import ConfigError, InvalidRequest
from batchpool.core.tensors.spec import ModelSpec, Tensor

FORMS = ("json", "raw")


class ValueReader:
    """Rows of records in one form.

    json: an object with a value for each input, or the value of the only one. raw: the bytes are
    the value of the only input, a bytes tensor. columns: {input: member of the object}. what: said
    of a value in errors. ConfigError where the model has no such inputs.
    """

    def __init__(
        self,
        spec: ModelSpec,
        form: str,
        columns: Mapping[str, str],
        what: str = "the record's value",
    ) -> None:
        self._what = what
        self._lone = only_input(spec)
        self._inputs = {tensor.name: tensor for tensor in spec.inputs}
        self._columns = mapped_columns(spec, None, columns)
        self._form = form
        if form == "raw" and (self._lone is None or not self._inputs[self._lone].is_bytes):
            raise ConfigError(
                f"--value raw: model {spec.name!r} has not one bytes input, whose value the record"
                " would be; --value json was expected"
            )

    def row(self, value: bytes | None) -> dict[str, Any]:
        """{input: value}. InvalidRequest for a value that is no row."""
        if value is None:
            raise InvalidRequest("the record has no value (a tombstone); one was expected")
        if self._form == "raw":
            assert self._lone is not None
            return {self._lone: value}
        try:
            found = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise InvalidRequest(f"{self._what} is no JSON: {exc}") from None
        if not isinstance(found, dict):
            if self._lone is None:
                names = ", ".join(map(repr, self._inputs))
                raise InvalidRequest(
                    f"{self._what} is a {type(found).__name__}; an object with {names} was expected"
                )
            return {self._lone: found}
        row = {name: found[own] for name, own in self._columns.items() if own in found}
        for name, tensor in self._inputs.items():
            if name not in row and tensor.default is None:
                raise InvalidRequest(
                    f"{self._what} has no {self._columns[name]!r}, which is input {name!r};"
                    f" it has {', '.join(map(repr, found)) or 'nothing'}"
                )
        return row


class ValueWriter:
    """Outputs of rows as JSON objects: numbers as they are, bytes as text."""

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self._outputs = {tensor.name: tensor for tensor in outputs}
        self._encoder = msgspec.json.Encoder()

    def value(self, row: Mapping[str, Any]) -> bytes:
        """The value of the record with a row's outputs; NaN and infinity are null in it."""
        shown = {name: self._shown(name, value) for name, value in row.items()}
        return self._encoder.encode(shown)

    def _shown(self, name: str, value: Any) -> Any:
        tensor = self._outputs.get(name)
        return _plain(value if tensor is None else readable_rows(tensor, value))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    elif isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
