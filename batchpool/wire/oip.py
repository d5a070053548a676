"""Open Inference Protocol v2: JSON, and binary tensors behind it.

    body = <JSON><bytes of binary tensor 0><bytes of binary tensor 1>...

The tensors follow in the order of the JSON's list, little-endian, row-major, without padding. The
header Inference-Header-Content-Length gives the length of the JSON; it is absent where nothing
follows. Members that are not the protocol's are refused, not ignored: a misspelt `parameters`
would otherwise change the result unnoticed. `model_name` and `model_version`, which some clients
repeat in the request, are ignored. Extensions that are not offered are refused by name: shared
memory, sequences.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from batchpool.core.errors import InvalidRequest, TooLarge
from batchpool.core.tensors.dtypes import Array
from batchpool.wire import parameters
from batchpool.wire.inputs import UNREADABLE, InputReader, begins_as_json, no_number_hint
from batchpool.wire.json_text import no_text
from batchpool.wire.model_tables import ModelTables, binary_fields, json_fields
from batchpool.wire.plain import PlainForm
from batchpool.wire.request import (
    Body,
    HeaderList,
    Headers,
    InferRequest,
    OutputChoice,
    brief,
    header_length,
    header_timeout_ns,
    sooner,
)

# Members whose values are not needed stay as they are written: reading them would make many values
# of what a stranger sends.
_ABSENT = msgspec.Raw()


class _InputExtra(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    binary_data_size: int | msgspec.UnsetType = msgspec.UNSET
    shared_memory_region: msgspec.Raw = _ABSENT
    shared_memory_byte_size: msgspec.Raw = _ABSENT
    shared_memory_offset: msgspec.Raw = _ABSENT


class _Input(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str
    datatype: str
    shape: list[int]
    parameters: _InputExtra | None = None
    data: msgspec.Raw = _ABSENT


class _OutputExtra(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    binary_data: bool | msgspec.UnsetType = msgspec.UNSET
    classification: msgspec.Raw = _ABSENT
    shared_memory_region: msgspec.Raw = _ABSENT
    shared_memory_byte_size: msgspec.Raw = _ABSENT
    shared_memory_offset: msgspec.Raw = _ABSENT


class _Output(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str
    parameters: _OutputExtra | None = None


class _Head(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    inputs: list[_Input]
    outputs: list[_Output] | None = None
    id: str | None = None
    parameters: dict[str, bool | int | float | str | None] | None = None
    model_name: msgspec.Raw = _ABSENT
    model_version: msgspec.Raw = _ABSENT


class _RawParameters(msgspec.Struct):
    """The parameters of a JSON head as they are written."""

    parameters: dict[str, msgspec.Raw] = {}


class _Name(msgspec.Struct):
    name: str = ""


class _Names(msgspec.Struct):
    """The names of tensors in a JSON head that could not be decoded, for the message."""

    inputs: list[_Name] = []
    outputs: list[_Name] = []


_MOST_CLASSES = 1 << 16  # texts of an answer, each of which is made one by one
_BOM = b"\xef\xbb\xbf"
_HEAD = msgspec.json.Decoder(_Head)
_NAMES = msgspec.json.Decoder(_Names)
_NUMBER = msgspec.json.Decoder(int)
_RAW_PARAMETERS = msgspec.json.Decoder(_RawParameters)
_PLACE = re.compile(r"\$\.(input|output)s\[(\d+)\]")


class OipForm:
    """The protocol's JSON form of one model, with or without binary tensors behind the JSON.

    name: of the form, which its requests bear. plain: reads JSON that is not the protocol's.
    """

    def __init__(self, tables: ModelTables, name: str, plain: PlainForm | None = None) -> None:
        self._tables = tables
        self._name = name
        self._plain = plain
        self.frame = tables.frame

    @staticmethod
    def recognises(body: Body) -> bool:
        """True for a JSON object that is a request of the protocol, whether right or wrong."""
        try:
            return bool(_NAMES.decode(body).inputs)
        except UNREADABLE:
            return False

    def parse(self, headers: Headers, body: Body, priority: int) -> InferRequest:
        """The request of a whole body; `priority` is the header's.

        Raises InvalidRequest or TooLarge, which say what is wrong with it.
        """
        tables = self._tables
        size = len(body)
        json_size = at = header_length(headers, size)
        written = body if at == size else body[:at]
        try:
            head = _HEAD.decode(written)
        except UNREADABLE as exc:
            text = _explain(written, exc)
            if self._plain is None or at != size or self.recognises(body):
                raise InvalidRequest(text) from None
            if not begins_as_json(body):
                raise InvalidRequest(text + self._plain.hint) from None
            return self._plain.parse(headers, body, priority)
        tensors: dict[str, Array] = {}
        n = 0
        for given in head.inputs:
            reader = tables.reader(given.name, tensors)
            rows = reader.rows_in(given.datatype, given.shape)
            if rows != n:
                if tensors:
                    tables.check_same_rows(given.name, rows, tensors, n)
                n = rows
            binary_size = _binary_size(given)
            if binary_size is None:
                tensors[given.name] = reader.from_json(given.data, given.shape)
                continue
            tensors[given.name] = _binary(reader, body, at, binary_size, given.shape)
            at += binary_size
        if at != size:
            raise InvalidRequest(
                f"{size - at} bytes are left over after the last binary input of model"
                f" {tables.spec.name!r}"
            )
        timeout_ns = header_timeout_ns(headers)
        if not head.parameters:
            outputs = _outputs(tables, head.outputs, False, n)
            return InferRequest(
                head.id or None,
                tables.rows(n, tensors, None),
                outputs,
                timeout_ns,
                priority,
                self._name,
            )
        asked = parameters.read(tables, head.parameters)
        for name in tables.float_parameters & asked.values.keys():
            if asked.values[name] == 0:
                asked.values[name] = _signed_zero(body[:json_size], name, asked.values[name])
        return InferRequest(
            head.id or None,
            tables.rows(n, tensors, asked.values),
            _outputs(tables, head.outputs, asked.binary_output, n),
            sooner(timeout_ns, asked.timeout_ns),
            priority or asked.priority,
            self._name,
        )

    def fixed_size_reader(self, size: int) -> None:
        """None: the JSON of each body must be parsed."""

    def encode(
        self,
        request: InferRequest,
        outputs: Mapping[str, Array],
        model_parameters: Mapping[str, Any] | None,
    ) -> tuple[HeaderList, bytes]:
        """The headers and body of the answer: JSON, then the binary outputs in its order."""
        tables = self._tables
        if not model_parameters:
            frame = tables.frame(request, len(outputs[request.outputs[0].name]))
            if frame is not None:
                payloads = [
                    tables.writers[c.name].to_bytes(outputs[c.name]) for c in request.outputs
                ]
                return frame.fields, b"".join([frame.head, *payloads])
        pieces: list[bytes] = []
        tail: list[Any] = [b""]
        tail_size = 0
        for choice, writer, array in tables.answered(request.outputs, outputs):
            if choice.binary:
                payload = writer.to_bytes(array)
                size = len(payload) if isinstance(payload, bytes) else payload.nbytes
                pieces.append(writer.binary_piece(array.shape, size))
                tail.append(payload)
                tail_size += size
            else:
                pieces.append(writer.json_piece(array))
        extra = (
            b'"parameters":%s,' % msgspec.json.encode(dict(model_parameters))
            if model_parameters
            else b""
        )
        id_member = b'"id":%s,' % msgspec.json.encode(request.id) if request.id else b""
        head = b'{%s%s%s"outputs":[%s]}' % (
            id_member,
            tables.response_head,
            extra,
            b",".join(pieces),
        )
        if not tail_size:
            return json_fields(len(head)), head
        tail[0] = head
        return binary_fields(len(head), len(head) + tail_size), b"".join(tail)


def _explain(head: Body, exc: Exception) -> str:
    if not len(head):
        return 'the body is empty; JSON with "inputs" was expected'
    raw = bytes(head[: len(_BOM)])
    if raw == _BOM:
        return "the request's JSON begins with a byte order mark; send it without"
    text = no_text(head) or str(exc)
    if len(text) > 300:
        text = text[:297] + "..."
    text += no_number_hint(head)
    place = _PLACE.search(text)
    if place is None:
        return f"the request's JSON: {text}"
    kind = place[1]
    try:
        names = _NAMES.decode(head)
        name = (names.inputs if kind == "input" else names.outputs)[int(place[2])].name
    except (*UNREADABLE, IndexError):
        name = ""
    return f"{kind} {brief(name)}: {text}" if name else f"the request's JSON: {text}"


def _signed_zero(head: Body, name: str, zero: Any) -> Any:
    """The value of a float parameter that is 0: -0.0 where the JSON says -0."""
    written = _RAW_PARAMETERS.decode(head).parameters.get(name)
    return -0.0 if written is not None and bytes(written).strip() == b"-0" else zero


def _binary_size(given: _Input) -> int | None:
    """The input's `binary_data_size`; None for an input with JSON data."""
    extra = given.parameters
    if extra is None:
        if given.data is _ABSENT:
            raise _not_one_source(given, "neither came")
        return None
    if _names_shared_memory(extra):
        raise InvalidRequest(
            f"input {given.name!r}: the shared-memory extension is not offered; send the tensor"
            " in the request"
        )
    if extra.binary_data_size is msgspec.UNSET:
        if given.data is _ABSENT:
            raise _not_one_source(given, "neither came")
        return None
    if given.data is not _ABSENT:
        raise _not_one_source(given, "both came")
    return extra.binary_data_size


def _names_shared_memory(extra: _InputExtra | _OutputExtra) -> bool:
    members = extra.shared_memory_region, extra.shared_memory_byte_size, extra.shared_memory_offset
    return any(bytes(member) not in (b"", b"null") for member in members)


def _not_one_source(given: _Input, came: str) -> InvalidRequest:
    return InvalidRequest(
        f"input {given.name!r}: exactly one of 'data' and 'binary_data_size' in 'parameters'"
        f" was expected; {came}"
    )


def _binary(reader: InputReader, body: Body, at: int, size: int, shape: list[int]) -> Array:
    if not 0 <= size <= len(body) - at:
        raise InvalidRequest(
            f"input {reader.name!r} has binary_data_size {brief(size)},"
            f" but {len(body) - at} bytes are left"
        )
    return reader.from_bytes(body, at, size, shape)


def _outputs(
    tables: ModelTables, asked: list[_Output] | None, binary_default: bool, n: int
) -> tuple[OutputChoice, ...]:
    if not asked:
        return tables.all_outputs(binary_default)
    choices: dict[str, OutputChoice] = {}
    for output in asked:
        extra = output.parameters
        binary, classes = binary_default, 0
        if extra is not None:
            _refuse_shared_memory(output.name, extra)
            if extra.classification is not _ABSENT:
                classes = _classes(output.name, extra.classification)
            if extra.binary_data is not msgspec.UNSET:
                binary = extra.binary_data
        choices[output.name] = tables.output(output.name, binary, choices, classes)
    texts = n * sum(choice.classes for choice in choices.values())
    if texts > _MOST_CLASSES:
        raise TooLarge(
            f"parameter 'classification' asks for {texts} texts in all rows; at most"
            f" {_MOST_CLASSES} stand in one answer: ask for fewer of each row, or for the output"
        )
    return tuple(choices.values())


def _classes(name: str, written: msgspec.Raw) -> int:
    """The parameter `classification`: how many classes of each row; 0 for the output itself."""
    text = bytes(written)
    if text in (b"null", b"false"):
        return 0
    try:
        classes = _NUMBER.decode(text)
    except UNREADABLE:
        classes = -1
    if classes < 0:
        came = brief(text.decode(errors="replace"))
        raise InvalidRequest(
            f"output {brief(name)}: parameter 'classification' is {came}; a whole number was"
            " expected: how many of each row's highest values are wanted"
        )
    return classes


def _refuse_shared_memory(name: str, extra: _OutputExtra) -> None:
    if _names_shared_memory(extra):
        raise InvalidRequest(
            f"output {brief(name)}: the shared-memory extension is not offered; the tensor comes"
            " in the response"
        )
