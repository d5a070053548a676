"""Reading of plain JSON: the tensors by name as lists, and how the answer is written."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.spec import Tensor
from batchpool.wire import parameters
from batchpool.wire.curl_samples import plain_sample
from batchpool.wire.inputs import MINUS_ZERO, UNREADABLE, no_number_hint
from batchpool.wire.json_text import no_text
from batchpool.wire.model_tables import ModelTables
from batchpool.wire.request import Body, PlainAnswer, brief

PREDICTIONS, OUTPUTS = "predictions", "outputs"  # members of answers
_ABSENT = msgspec.Raw()
_INEXACT_FROM = 2.0**53  # of the whole numbers from here on a float holds only some
_WIDEST_BYTES = 8  # no other integer dtype holds such numbers
_LIST_OF_OBJECTS = re.compile(rb"\s*\[\s*[{\]]")
_UNKNOWN = re.compile(r"unknown field `(.*)`", re.DOTALL)
# A string is passed over, so that a text with "-0" in it stays as it is.
_STRING_OR_MINUS_ZERO = re.compile(rb'"(?:[^"\\]|\\.)*"|-0(?![.0-9eE])', re.DOTALL)
_INSTANCES, _INPUTS, _PARAMETERS = "instances", "inputs", "parameters"
_ASKED = "outputs"  # the member of a request
_ID = "id"


class PlainRequest(NamedTuple):
    """A body that was read, not yet checked against the model's shapes and dtypes. id: None when
    absent or empty. outputs: the names that were asked for, () for all."""

    id: str | None
    inputs: dict[str, Any]
    asked: parameters.Asked
    outputs: tuple[str, ...]
    answer: PlainAnswer


class PlainReader:
    """Reads the plain JSON of one model.

    hint: the end of a message for a body that is no request, with one that works.
    """

    def __init__(self, tables: ModelTables) -> None:
        self._tables = tables
        self._spec = tables.spec
        self._inputs = {tensor.name: tensor for tensor in tables.spec.inputs}
        members = (_INSTANCES, _INPUTS, _PARAMETERS, _ASKED)
        others = [name for name in members if name not in self._inputs]
        if all(tensor.name != _ID for tensor in (*tables.spec.inputs, *tables.spec.outputs)):
            others.append(_ID)
        self._reserved = frozenset(others)
        self._names = [*self._inputs, *others]
        sample = plain_sample(tables.spec)
        self.hint = f"; this works: {sample}" if sample else ""
        if len(self._inputs) == 1 and tables.spec.inputs[0].is_bytes:
            self.hint += (
                "; so do its bytes alone, as image/*, text/plain or application/octet-stream"
            )
        # Members that are not known are refused, or passed over, before anything is made of them.
        self._exactly = self._decoder(strict=True)
        self._known = self._decoder(strict=False)

    def _decoder(self, *, strict: bool) -> msgspec.json.Decoder[Any]:
        members = [
            (f"m{i}", msgspec.Raw, msgspec.field(default=_ABSENT, name=name))
            for i, name in enumerate(self._names)
        ]
        return msgspec.json.Decoder(
            msgspec.defstruct("Members", members, forbid_unknown_fields=strict, gc=False)
        )

    def _members(self, decoder: msgspec.json.Decoder[Any], body: Body) -> dict[str, msgspec.Raw]:
        raws = msgspec.structs.astuple(decoder.decode(body))
        given = zip(self._names, raws, strict=True)
        return {name: raw for name, raw in given if raw is not _ABSENT}

    def recognises(self, body: Body) -> bool:
        """True for a JSON object with an input of the model, "instances", or "inputs" that are
        none of the protocol's."""
        try:
            members = self._members(self._known, body)
        except UNREADABLE:
            return False
        inputs = members.pop(_INPUTS, _ABSENT) if _INPUTS in self._reserved else _ABSENT
        if _ID in self._reserved:
            members.pop(_ID, None)
        if members.keys() - {_PARAMETERS, _ASKED}:
            return True
        return inputs is not _ABSENT and not _is_list_of_objects(inputs)

    def read(self, body: Body) -> PlainRequest:
        """The content of a whole body; InvalidRequest where it is no plain JSON of the model."""
        try:
            members = self._members(self._exactly, body)
        except UNREADABLE as exc:
            raise self._unreadable(body, exc) from None
        asked = self._parameters(members)
        outputs = self._outputs(members)
        request_id = self._id(members)
        member, named = self._tensors(members)
        if not named:
            raise InvalidRequest(
                f"the request's JSON has neither the protocol's 'inputs' nor an input of model"
                f" {self._spec.name!r}, which has {self._listed()}{self.hint}"
            )
        by_row = member == PREDICTIONS
        lone = not by_row and self._is_one_row(named)
        if lone:
            named = {name: [value] for name, value in named.items()}
        return PlainRequest(request_id, named, asked, outputs, PlainAnswer(member, by_row, lone))

    def _unreadable(self, body: Body, exc: Exception) -> InvalidRequest:
        unknown = _UNKNOWN.search(str(exc))
        if unknown is None:
            text = f"the request's JSON: {no_text(body) or exc}{no_number_hint(body)}"
        elif unknown[1] in self._tables.declared:
            inside = msgspec.json.encode(unknown[1]).decode()
            return InvalidRequest(
                f"{brief(unknown[1])} is a parameter of model {self._spec.name!r}; it was expected"
                f' in the member "parameters", beside the inputs: "parameters": {{{inside}: ...}}'
            )
        else:
            name, model = brief(unknown[1]), self._spec.name
            text = f"model {model!r} has no input {name}; it has {self._listed()}"
        return InvalidRequest(text + self.hint)

    def _parameters(self, members: dict[str, msgspec.Raw]) -> parameters.Asked:
        raw = members.pop(_PARAMETERS, _ABSENT) if _PARAMETERS in self._reserved else _ABSENT
        if raw is _ABSENT:
            return parameters.Asked()
        given = _decoded(_PARAMETERS, raw)
        if type(given) is not dict:
            raise InvalidRequest(f"parameters is {brief(given)}; an object was expected")
        for name, value in given.items():
            if name not in self._tables.float_parameters:
                given[name] = _whole_number("parameter", name, _WIDEST_BYTES, value)
        asked = parameters.read(self._tables, given)
        if asked.binary_output:
            raise InvalidRequest(
                "parameter 'binary_data_output': a plain JSON body is answered in plain JSON; send"
                ' the protocol\'s {"inputs": [{"name": ..., "datatype": ..., "shape": ...}]}'
            )
        return asked

    def _id(self, members: dict[str, msgspec.Raw]) -> str | None:
        raw = members.pop(_ID, _ABSENT) if _ID in self._reserved else _ABSENT
        if raw is _ABSENT:
            return None
        found = _decoded(_ID, raw)
        if found is not None and type(found) is not str:
            raise InvalidRequest(f"id is {brief(found)}; a text was expected")
        return found or None

    def _outputs(self, members: dict[str, msgspec.Raw]) -> tuple[str, ...]:
        raw = members.pop(_ASKED, _ABSENT) if _ASKED in self._reserved else _ABSENT
        if raw is _ABSENT:
            return ()
        asked = _decoded(_ASKED, raw)
        if type(asked) is not list or not all(type(name) is str for name in asked):
            raise InvalidRequest(f"outputs is {brief(asked)}; a list of their names was expected")
        known = [tensor.name for tensor in self._spec.outputs]
        for i, name in enumerate(asked):
            if name not in known or name in asked[:i]:
                fault = "is asked for twice" if name in known else "is none of the model"
                raise InvalidRequest(
                    f"output {brief(name)} {fault}; {self._spec.name!r} has"
                    f" {', '.join(map(repr, known))}"
                )
        return tuple(asked)

    def _tensors(self, members: dict[str, msgspec.Raw]) -> tuple[str, dict[str, Any]]:
        """The member that the answer has for the outputs, and the inputs by name, as lists."""
        for member in (_INSTANCES, _INPUTS):
            if member not in members or member not in self._reserved:
                continue
            raw = members.pop(member)
            if members:
                raise InvalidRequest(
                    f"{member!r} and {brief(next(iter(members)))} came together; only one of them"
                    " was expected"
                )
            if member == _INSTANCES:
                return PREDICTIONS, self._of_instances(raw)
            return OUTPUTS, self._of_inputs(raw)
        return "", {n: self._value(self._inputs[n], raw) for n, raw in members.items()}

    def _of_inputs(self, raw: msgspec.Raw) -> dict[str, Any]:
        """The member "inputs": an object of tensors, or the value of the only one."""
        value = _decoded(_INPUTS, raw)
        if type(value) is dict and not self._is_element(value):
            self._check_names(value, "")
            return {n: self._converted(self._inputs[n], v, raw) for n, v in value.items()}
        only = self._only_input(_INPUTS)
        return {only.name: self._converted(only, value, raw)}

    def _of_instances(self, raw: msgspec.Raw) -> dict[str, Any]:
        """The member "instances": a list of rows, each an object or the value of the only input."""
        rows = _decoded(_INSTANCES, raw)
        if type(rows) is not list or not rows:
            raise InvalidRequest(
                f"instances is {brief(rows)}; a list with at least one row was expected"
            )
        if type(rows[0]) is not dict or self._is_element(rows[0]):
            only = self._only_input(_INSTANCES)
            return {only.name: self._converted(only, rows, raw)}
        names = list(rows[0])
        for i, row in enumerate(rows):
            if type(row) is not dict:
                raise InvalidRequest(f"instances: row {i} is {brief(row)}; an object was expected")
            self._check_names(row, f"instances: row {i}: ")
            if row.keys() != rows[0].keys():
                raise InvalidRequest(
                    f"instances: row {i} has {brief(list(row))}, but row 0 has {brief(names)}"
                )
        return {n: self._converted(self._inputs[n], [row[n] for row in rows], raw) for n in names}

    def _is_element(self, value: dict[str, Any]) -> bool:
        """True for {"b64": ...} where it can only be an element of the model's only input."""
        return value.keys() == {"b64"} and "b64" not in self._inputs

    def _listed(self) -> str:
        return ", ".join(map(repr, self._inputs))

    def _check_names(self, given: Mapping[str, Any], where: str) -> None:
        for name in given:
            if name not in self._inputs:
                raise InvalidRequest(
                    f"{where}model {self._spec.name!r} has no input {brief(name)};"
                    f" it has {self._listed()}"
                )

    def _only_input(self, member: str) -> Tensor:
        if len(self._inputs) > 1:
            raise InvalidRequest(
                f"model {self._spec.name!r} has {len(self._inputs)} inputs, so {member!r} must name"
                f" them: {self._listed()}"
            )
        return self._spec.inputs[0]

    def _value(self, tensor: Tensor, raw: msgspec.Raw) -> Any:
        return self._converted(tensor, _decoded(tensor.name, raw), raw)

    def _converted(self, tensor: Tensor, value: Any, raw: msgspec.Raw) -> Any:
        """The value with elements as the tensor takes them. raw: what it was decoded from."""
        if tensor.is_bytes:
            if b'"b64"' not in bytes(raw):
                return value
            return _mapped(value, partial(_binary_element, tensor.name))
        if tensor.np_dtype.kind in "iu" and not tensor.element.is_bfloat16:
            size = tensor.np_dtype.itemsize
            return _mapped(value, partial(_whole_number, "input", tensor.name, size))
        return value

    def _is_one_row(self, named: Mapping[str, Any]) -> bool:
        """True where no value is nested deeper than a row of its tensor."""
        return bool(named) and all(
            _depth(value) <= len(self._inputs[name].shape) for name, value in named.items()
        )


def _is_list_of_objects(raw: msgspec.Raw) -> bool:
    return _LIST_OF_OBJECTS.match(bytes(raw)) is not None


def _decoded(member: str, raw: msgspec.Raw) -> Any:
    """The value of a member; -0 is a float, whose sign a float tensor keeps."""
    written: Body = memoryview(raw)
    try:
        if MINUS_ZERO.search(written):
            written = _STRING_OR_MINUS_ZERO.sub(_signed, bytes(written))
        return msgspec.json.decode(written)
    except UNREADABLE as exc:
        raise InvalidRequest(no_text(memoryview(raw), member) or f"{member!r}: {exc}") from None


def _signed(found: re.Match[bytes]) -> bytes:
    return b"-0.0" if found[0] == b"-0" else found[0]


def _mapped(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Nested lists with every element converted."""
    if type(value) is list:
        return [_mapped(nested, convert) for nested in value]
    return convert(value)


def _whole_number(kind: str, name: str, size: int, value: Any) -> Any:
    """A float without a fraction as an int; one that may have lost digits is refused. size: the
    bytes of the tensor's elements."""
    if type(value) is not float or not value.is_integer():
        return value
    if size == _WIDEST_BYTES and _INEXACT_FROM <= abs(value) <= 2**64:
        raise InvalidRequest(
            f"{kind} {name!r}: the value {value!r} may have lost digits; a whole number from"
            " 2**53 on must be sent without a point and an exponent"
        )
    return int(value)


def _binary_element(name: str, value: Any) -> Any:
    if type(value) is not dict:
        return value
    text = value.get("b64")
    if len(value) != 1 or type(text) is not str:
        raise InvalidRequest(
            f'input {name!r}: {brief(value)}: a string or {{"b64": "..."}} was expected'
        )
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidRequest(
            f'input {name!r}: {{"b64": {brief(text)}}} is no base64: {exc}'
        ) from None


def _depth(value: Any) -> int:
    depth = 0
    while type(value) is list:
        depth += 1
        if not value:
            break
        value = value[0]
    return depth
