"""The wire forms: every way in which an infer request and its answer may be written.

    form      Content-Type                        Inference-Header-Content-Length
    json      application/json                    absent
    plain     the same; told from json by the body
    binary    application/json, octet-stream      bytes of JSON before the binary tensors
    raw       the same                            0
    octets    application/octet-stream            absent
    text      text/plain                          any value, not read
    media     image/*, audio/*, video/*           the same
    msgpack   application/msgpack and its synonyms the same
    arrow     application/vnd.apache.arrow.stream the same

`FORMS` has an entry for each of them; nothing else in the package names a form or compares a
media type. A new form is a class like those in `wire/oip.py`, `wire/raw.py` and
`wire/msgpack_form.py`, and one more entry here.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from batchpool.arrow.types import load
from batchpool.core.errors import UnsupportedMediaType
from batchpool.core.tensors.dtypes import Array
from batchpool.wire.arrow_form import ArrowForm
from batchpool.wire.inputs import begins_as_json
from batchpool.wire.model_tables import Frame, ModelTables
from batchpool.wire.msgpack_form import MsgpackForm
from batchpool.wire.msgpack_values import has_many_values
from batchpool.wire.oip import OipForm
from batchpool.wire.plain import PlainForm
from batchpool.wire.raw import FixedSizeReader, RawForm
from batchpool.wire.request import (
    HEADER_LENGTH,
    Body,
    HeaderList,
    Headers,
    InferRequest,
    brief,
)
from batchpool.wire.untyped import MediaForm, OctetsForm, TextForm

_JSON_TYPE, _OCTETS_TYPE = b"application/json", b"application/octet-stream"


class BoundForm(Protocol):
    """One wire form of one model. Its methods keep nothing of a request."""

    def parse(self, headers: Headers, body: Body, priority: int, /) -> InferRequest:
        """The checked request of a whole, decompressed body; `priority` is the header's.

        Its `form` is the name of the form. Raises only a `PoolError`.
        """

    def fixed_size_reader(self, size: int, /) -> FixedSizeReader | None:
        """A reader for more bodies of `size` bytes under headers that were parsed before.

        None where a body holds more than its rows, so that each one must be parsed.
        """

    def frame(self, request: InferRequest, n: int, /) -> Frame | None:
        """The answer of n rows without its tensors, or None where it cannot be made before them."""

    def encode(
        self,
        request: InferRequest,
        outputs: Mapping[str, Array],
        model_parameters: Mapping[str, Any] | None,
        /,
    ) -> tuple[HeaderList, bytes]:
        """The headers (with content type and length) and the body of a 200 answer."""


class JsonLength(enum.IntEnum):
    """The value of the header Inference-Header-Content-Length, as far as it selects a form."""

    ABSENT = 0
    ZERO = 1
    GIVEN = 2  # any other value, also one that is no number


@dataclass(frozen=True, eq=False)
class WireForm:
    """One way to write a request and its answer.

    name: of the form, unique.  media_types: the values of Content-Type that select it, in lower
    case and without parameters; the first one is named in messages and in the API's description.
    lengths: the values of Inference-Header-Content-Length that select it.  bind: makes the form
    of one model.  text_bytes: how many bytes of a body of a given size are parsed value by value,
    as text is, which takes long where they are many.  request_note, answer_note: for the API's
    description.  is_slow: whether that parsing may take long for this decoded body.  load: loads
    the libraries that the first `parse` would load, if they are installed.
    """

    name: str
    media_types: tuple[bytes, ...]
    lengths: tuple[JsonLength, ...]
    bind: Callable[[ModelTables], BoundForm]
    text_bytes: Callable[[Headers, int], int]
    request_note: str
    answer_note: str
    # JSON that does not begin as an object is refused at its first byte, or is no JSON.
    is_slow: Callable[[Body], bool] = begins_as_json
    load: Callable[[], None] | None = None

    @property
    def media_type(self) -> str:
        return self.media_types[0].decode()


class WireForms:
    """A set of wire forms, and the choice of one of them by the headers of a request.

    Raises ValueError where two forms are selected by the same headers.
    """

    def __init__(self, entries: Iterable[WireForm]) -> None:
        self.entries = tuple(entries)
        self._selected: dict[bytes, list[WireForm | None]] = {}
        for form in self.entries:
            for media_type in form.media_types:
                row = self._selected.setdefault(media_type, [None] * len(JsonLength))
                for length in form.lengths:
                    other = row[length]
                    if other is not None:
                        raise ValueError(
                            f"the forms {other.name} and {form.name} both take"
                            f" {media_type.decode()} with a JSON length {length.name}"
                        )
                    row[length] = form

    def load(self) -> None:
        """Load what the first bodies of the forms would load."""
        for form in self.entries:
            if form.load is not None:
                form.load()

    def of(self, headers: Headers) -> WireForm:
        """The form that these headers select; UnsupportedMediaType where there is none."""
        content_type = headers.get(b"content-type", b"")
        row = self._selected.get(content_type)
        if row is None:
            media_type = content_type.split(b";", 1)[0].strip().lower()
            kind, slash, _ = media_type.partition(b"/")
            row = self._selected.get(media_type) or self._selected.get(kind + slash + b"*")
            if row is None:
                raise self._unsupported(content_type)
        length = headers.get(HEADER_LENGTH)
        if length is None:
            form = row[0]
        elif length == b"0" or (length and not length.strip(b"0")):
            form = row[1]
        else:
            form = row[2]
        if form is None:
            raise self._unsupported(content_type)
        return form

    def _unsupported(self, content_type: bytes) -> UnsupportedMediaType:
        known = list(dict.fromkeys(form.media_type for form in self.entries))
        return UnsupportedMediaType(
            f"content type {brief(content_type.decode('latin-1'))} is not known here;"
            f" {', '.join(known[:-1])} or {known[-1]} was expected; the bytes of a model's only"
            f" input go as {_OCTETS_TYPE.decode()}"
        )


def _all_text(headers: Headers, size: int) -> int:
    return size


def _text_before_tensors(headers: Headers, size: int) -> int:
    length = headers.get(HEADER_LENGTH, b"")
    return int(length) if length.isdigit() and len(length) <= 20 else size


def _no_text(headers: Headers, size: int) -> int:
    return 0


def _accepts_json(headers: Headers, default: bool) -> bool:
    """True where the answer to raw bytes is to be JSON, by Accept: the first of JSON and
    octet-stream that it names. default: where it names neither."""
    accept = headers.get(b"accept")
    if accept is None:
        return default
    accept = accept.lower()
    json, octets = accept.find(_JSON_TYPE), accept.find(_OCTETS_TYPE)
    if json < 0 or octets < 0:
        return json >= 0 or (octets < 0 and default)
    return json < octets


def _heads_of_messages(headers: Headers, size: int) -> int:
    """A stream may be nothing but heads of messages, each read by itself, which takes eight times
    as long for a byte as text does."""
    return 8 * size


def _never_slow(body: Body) -> bool:
    """For a form that the parser process does not read."""
    return False


_unless_octets = partial(_accepts_json, default=True)


def _json_form(tables: ModelTables) -> OipForm:
    return OipForm(tables, "json", PlainForm(tables, "plain"))


# curl, libcurl and ab say form-encoded where their user names no type.
_UNNAMED = (b"", b"application/x-www-form-urlencoded")
_JSON = (_JSON_TYPE, *_UNNAMED)
_OCTETS = (_OCTETS_TYPE, _JSON_TYPE, *_UNNAMED)

FORMS = WireForms(
    (
        WireForm(
            name="json",
            media_types=_JSON,
            lengths=(JsonLength.ABSENT,),
            bind=_json_form,
            text_bytes=_all_text,
            request_note="",
            answer_note="",
        ),
        WireForm(
            name="plain",
            media_types=_JSON,
            lengths=(),
            bind=partial(PlainForm, name="plain"),
            text_bytes=_all_text,
            request_note="",
            answer_note="",
        ),
        WireForm(
            name="binary",
            media_types=_OCTETS,
            lengths=(JsonLength.GIVEN,),
            bind=partial(OipForm, name="binary"),
            text_bytes=_text_before_tensors,
            request_note="With Inference-Header-Content-Length: N, N bytes of JSON and then the"
            " binary tensors in its order",
            answer_note="The JSON part, then the binary tensors.",
        ),
        WireForm(
            name="raw",
            media_types=_OCTETS,
            lengths=(JsonLength.ZERO,),
            bind=partial(RawForm, name="raw", answers_json=partial(_accepts_json, default=False)),
            text_bytes=_no_text,
            request_note="with the length 0, the only input alone",
            answer_note="",
        ),
        WireForm(
            name="octets",
            media_types=(_OCTETS_TYPE,),
            lengths=(JsonLength.ABSENT,),
            bind=partial(OctetsForm, name="octets", answers_json=_unless_octets),
            text_bytes=_all_text,
            request_note="without it, JSON or the only input alone.",
            answer_note="",
        ),
        WireForm(
            name="text",
            media_types=(b"text/plain",),
            lengths=tuple(JsonLength),
            bind=partial(TextForm, name="text", answers_json=_unless_octets),
            text_bytes=_all_text,
            request_note="The text of the only input, or JSON.",
            answer_note="",
        ),
        WireForm(
            name="media",
            media_types=(b"image/*", b"audio/*", b"video/*"),
            lengths=tuple(JsonLength),
            bind=partial(MediaForm, name="media", answers_json=_unless_octets),
            text_bytes=_no_text,
            request_note="The bytes of the only input, such as a JPEG.",
            answer_note="",
        ),
        WireForm(
            name="msgpack",
            media_types=(
                b"application/msgpack",
                b"application/x-msgpack",
                b"application/vnd.msgpack",
            ),
            lengths=tuple(JsonLength),
            bind=partial(MsgpackForm, name="msgpack"),
            text_bytes=_all_text,
            request_note="{inputs: {name: {dtype, shape, data}}}",
            answer_note="The same as msgpack.",
            is_slow=has_many_values,
        ),
        WireForm(
            name="arrow",
            media_types=(b"application/vnd.apache.arrow.stream",),
            lengths=tuple(JsonLength),
            bind=partial(ArrowForm, name="arrow", list_name="arrow lists"),
            text_bytes=_heads_of_messages,
            request_note="A stream of Arrow IPC with a column for each input.",
            answer_note="The same, with a column for each output.",
            is_slow=_never_slow,
            load=load,
        ),
        WireForm(
            name="arrow lists",
            media_types=(b"application/vnd.apache.arrow.stream",),
            lengths=(),
            bind=partial(ArrowForm, name="arrow lists", lists=True),
            text_bytes=_no_text,
            request_note="",
            answer_note="",
        ),
    )
)
form_of = FORMS.of
