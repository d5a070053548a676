"""The meaning of a body by a second, slow decoder that shares no code with the first one.

It reads JSON with the standard library and msgpack with the `msgpack` package, one value at a time.
`meaning` gives the rows of an accepted request, or None for one that must be refused; it raises
Undecided where the rules leave the outcome open, as for a member that stands twice.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.reference_json import Refused, Undecided, plain_rows, protocol_rows, read_json
from tests.fuzz.reference_msgpack import msgpack_rows
from tests.fuzz.reference_tensors import MODELS, Rows, raw_rows
from tests.fuzz.valid import Body

_JSON_TYPES = ("", "application/json", "application/x-www-form-urlencoded")
_OCTETS = "application/octet-stream"
_MSGPACK = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")


@dataclass
class Meaning:
    """An accepted request: its rows by input, its parameters, and the form of its answer.

    answer: "json" (some outputs may be binary), "binary", "plain" or "msgpack". outputs: (name,
    binary) in the order of the answer, where the caller chose them. may_be_late: it asked for a
    deadline that can pass.
    """

    rows: Rows
    answer: str
    parameters: dict[str, Any] = field(default_factory=dict)
    outputs: list[tuple[str, bool]] | None = None
    id: str | None = None
    may_be_late: bool = False


def meaning(body: Body) -> Meaning | None:
    """The meaning of a request; None where it must be refused with a 4xx."""
    try:
        return _meaning(body)
    except Refused:
        return None


def _meaning(body: Body) -> Meaning:
    headers = body.headers
    priority = headers.get("x-request-priority", "0")
    if not (priority.isascii() and priority.isdigit() and int(priority) <= 255):
        raise Refused("priority")
    kind = headers.get("content-type", "").split(";")[0].strip().lower()
    length = headers.get("inference-header-content-length")
    content = _decoded(headers.get("content-encoding", ""), body.content)
    model = MODELS[body.model]
    if kind in _MSGPACK:
        return _of_msgpack(model, content)
    if kind == "text/plain":
        return _of_text(model, content, headers)
    if kind.startswith(("image/", "audio/", "video/")):
        return Meaning(raw_rows(model, content), _raw_answer(headers, "plain"))
    if kind not in (*_JSON_TYPES, _OCTETS):
        raise Refused("content type")
    if length is not None and length and not length.strip("0"):
        return Meaning(raw_rows(model, content), _raw_answer(headers, "binary"))
    if length is not None:
        if not (length.isascii() and length.isdigit()) or int(length) > len(content):
            raise Refused("header length")
        head = content[: int(length)]
        return _of_protocol(model, read_json(head), content[int(length) :])
    if kind == _OCTETS and content and not _is_json_object(content):
        return Meaning(raw_rows(model, content), _raw_answer(headers, "plain"))
    return _of_json(model, content)


def _decoded(coding: str, content: bytes) -> bytes:
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return content
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise Refused("coding")
    if not content:
        raise Refused("nothing is compressed")
    try:
        if coding == "deflate":
            stream = zlib.decompressobj()
            found = stream.decompress(content) + stream.flush()
            if not stream.eof or stream.unused_data:
                raise Refused("deflate")
            return found
        found = gzip.decompress(content)
    except (OSError, EOFError, zlib.error, ValueError):
        raise Refused("compressed") from None
    one = zlib.decompressobj(31)
    try:
        one.decompress(content)
    except zlib.error:  # reserved flags, which RFC 1952 has refused
        raise Refused("flags") from None
    if one.unused_data:
        raise Refused("more than one member")
    return found


def _is_json_object(content: bytes) -> bool:
    if content.lstrip(b" \t\r\n")[:1] != b"{":
        return False
    try:
        read_json(content)
    except Refused:
        return False
    return True


def _raw_answer(headers: dict[str, str], default: str) -> str:
    accept = headers.get("accept", "").lower()
    return "plain" if "application/json" in accept else default


def _of_json(model: Any, content: bytes) -> Meaning:
    document = read_json(content)
    if not isinstance(document, dict):
        raise Refused("no object")
    if _is_protocol(document):
        return _of_protocol(model, document, b"")
    try:  # an empty list of inputs is the protocol's, and lacks every input
        if document.get("inputs") == [] and "inputs" in document:
            return _of_protocol(model, document, b"")
    except Refused:
        if set(document) - {"inputs", "outputs", "id", "parameters", "model_name", "model_version"}:
            raise Undecided("refused in one way or the other") from None
        raise
    found = plain_rows(model, document)
    return Meaning(
        found.rows, "plain", found.parameters, found.outputs, may_be_late=found.may_be_late
    )


def _is_protocol(document: dict[str, Any]) -> bool:
    """True for a list of objects as inputs, whose names, if any, are texts."""
    inputs, outputs = document.get("inputs"), document.get("outputs", [])
    if not isinstance(inputs, list) or not inputs or not isinstance(outputs, list):
        return False
    return all(
        isinstance(tensor, dict) and isinstance(tensor.get("name", ""), str)
        for tensor in (*inputs, *outputs)
    )


def _of_protocol(model: Any, document: Any, tail: bytes) -> Meaning:
    found = protocol_rows(model, document, tail)
    return Meaning(found.rows, "json", found.parameters, found.outputs, found.id, found.may_be_late)


def _of_msgpack(model: Any, content: bytes) -> Meaning:
    found = msgpack_rows(model, content)
    return Meaning(
        found.rows, "msgpack", found.parameters, found.outputs, found.id, found.may_be_late
    )


def _of_text(model: Any, content: bytes, headers: dict[str, str]) -> Meaning:
    is_blob = list(model.inputs) == ["x"] and model.inputs["x"].datatype == "BYTES"
    document = read_json(content) if _is_json_object(content) else None
    if document is not None and (
        not is_blob
        or bool(document.keys() & {"x", "instances"})
        or ("inputs" in document and not _has_objects(document["inputs"]))
        or _is_protocol(document)
    ):
        return _of_json(model, content)
    if is_blob:
        return Meaning(raw_rows(model, content), _raw_answer(headers, "plain"))
    raise Refused("no text")


def _has_objects(inputs: Any) -> bool:
    """True for a list that begins with an object, or holds nothing."""
    return isinstance(inputs, list) and (not inputs or isinstance(inputs[0], dict))
