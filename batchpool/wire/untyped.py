"""Bodies whose headers do not say that they are a tensor: a picture, plain text, octets.

    Content-Type                   body
    image/*, audio/*, video/*      the one input, raw
    application/octet-stream       a JSON object in any form of JSON; anything else is the one input
    text/plain                     the one input where that is BYTES, else JSON; a JSON object that
                                   names what the model or the protocol has is JSON in any case

Octets with the header Inference-Header-Content-Length are as it says; the other types do not read
it. Raw bodies are answered in plain JSON, or with binary tensors where the caller's Accept
asks for application/octet-stream.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from batchpool.core.errors import InvalidRequest
from batchpool.wire.inputs import UNREADABLE, begins_as_json
from batchpool.wire.model_tables import ModelTables
from batchpool.wire.oip import OipForm
from batchpool.wire.raw import RawForm
from batchpool.wire.request import HEADER_LENGTH, Body, Headers, InferRequest, brief

# A few whose decoders take a time in proportion to the text.
_CHARSETS = ("iso-8859-1", "latin-1", "latin1", "windows-1252", "cp1252", "utf-16", "utf-16le")
_SAME = ("utf-8", "utf8", "us-ascii", "ascii")
_CHARSET = re.compile(rb";\s*charset\s*=\s*\"?([^\s;\"]*)", re.IGNORECASE)
_SYNTAX = msgspec.json.Decoder(msgspec.Raw)  # reads a body to its end and keeps no value of it


class MediaForm:
    """Pictures, sounds and videos of one model. Parameters as of `RawForm`."""

    def __init__(
        self, tables: ModelTables, name: str, answers_json: Callable[[Headers], bool]
    ) -> None:
        self._raw = RawForm(tables, name, answers_json)
        self.parse = self._raw.parse
        self.frame = self._raw.frame
        self.encode = self._raw.encode

    def fixed_size_reader(self, size: int) -> None:
        """None: each body is looked at."""


class OctetsForm(MediaForm):
    """JSON, or the one input's bytes."""

    def __init__(
        self, tables: ModelTables, name: str, answers_json: Callable[[Headers], bool]
    ) -> None:
        super().__init__(tables, name, answers_json)
        self._json = OipForm(tables, "json", self._raw.plain)
        self.parse = self._parse

    def _parse(self, headers: Headers, body: Body, priority: int) -> InferRequest:
        if not len(body) or is_json_object(body):
            return self._json.parse(headers, body, priority)
        return self._raw.parse(headers, body, priority)


class TextForm(OctetsForm):
    """JSON, or the one input's text."""

    def __init__(
        self, tables: ModelTables, name: str, answers_json: Callable[[Headers], bool]
    ) -> None:
        super().__init__(tables, name, answers_json)
        self._plain = self._raw.plain
        self._takes_text = len(tables.spec.inputs) == 1 and tables.spec.inputs[0].is_bytes

    def _parse(self, headers: Headers, body: Body, priority: int) -> InferRequest:
        if is_json_object(body) and (not self._takes_text or self._is_meant_as_json(body)):
            if HEADER_LENGTH in headers:  # of binary tensors, which text cannot have behind it
                headers = {name: headers[name] for name in headers if name != HEADER_LENGTH}
            return self._json.parse(headers, body, priority)
        if self._takes_text:
            return self._raw.parse(headers, _as_utf8(headers, body), priority)
        raise InvalidRequest(
            "the body is text/plain and no JSON object; the JSON of a request, or the input's bytes"
            f" as application/octet-stream, was expected{self._plain.hint}"
        )

    def _is_meant_as_json(self, body: Body) -> bool:
        return self._plain.recognises(body) or OipForm.recognises(body)


def _as_utf8(headers: Headers, body: Body) -> Body:
    """A text in the charset that its Content-Type names, as UTF-8. Text of no or its own charset is
    not looked at."""
    named = _CHARSET.search(headers.get(b"content-type", b""))
    if named is None:
        return body
    charset = named[1].decode("latin-1").lower()
    if charset in _SAME:
        return body
    if charset not in _CHARSETS:
        raise InvalidRequest(f"charset {brief(charset)} is not known here; UTF-8 was expected")
    try:
        return bytes(body).decode(charset).encode()
    except UnicodeError as exc:
        raise InvalidRequest(f"the body is not {charset}: {exc}") from None


def is_json_object(body: Body) -> bool:
    """True for a JSON object; no value of it is made."""
    if not begins_as_json(body):
        return False
    try:
        _SYNTAX.decode(body)
    except UNREADABLE:
        return False
    return True
