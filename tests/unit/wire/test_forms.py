"""The registry of wire forms: which headers select which, and how one is added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import UnsupportedMediaType
from batchpool.core.tensors.dtypes import Array
from batchpool.wire.codec import Codec
from batchpool.wire.forms import FORMS, JsonLength, WireForm, WireForms, form_of
from batchpool.wire.model_tables import ModelTables
from batchpool.wire.request import Body, HeaderList, Headers, InferRequest, header_timeout_ns
from tests.unit.wire.calls import AFFINE, GOOD, ask, body_of


@pytest.mark.parametrize(
    ("content_type", "form"),
    [
        (None, "json"),
        (b"", "json"),
        (b"application/json", "json"),
        (b"Application/JSON; charset=utf-8", "json"),
        (b"application/octet-stream", "octets"),
        (b"text/plain", "text"),
        (b"Text/Plain; charset=utf-8", "text"),
        (b"image/png", "media"),
        (b"audio/wav;rate=16000", "media"),
        (b"VIDEO/mp4", "media"),
        (b"application/x-www-form-urlencoded", "json"),
        (b"application/msgpack", "msgpack"),
        (b"application/x-msgpack ;v=5", "msgpack"),
        (b"application/vnd.msgpack", "msgpack"),
    ],
)
def test_the_form_by_content_type(content_type: bytes | None, form: str) -> None:
    headers = {} if content_type is None else {b"content-type": content_type}
    assert form_of(headers).name == form


@pytest.mark.parametrize(
    "content_type",
    [b"text/html", b"multipart/form-data; boundary=x", b"image", b"json", b"\xff" * 500],
)
def test_other_content_types_are_not_known(content_type: bytes) -> None:
    with pytest.raises(UnsupportedMediaType) as caught:
        form_of({b"content-type": content_type})
    assert caught.value.status == 415
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("length", "form"),
    [(b"0", "raw"), (b"000", "raw"), (b"10", "binary"), (b"", "binary"), (b"x", "binary")],
)
def test_a_header_length_of_zero_is_the_raw_form(length: bytes, form: str) -> None:
    headers = {b"inference-header-content-length": length}
    assert form_of(headers).name == form
    assert form_of(headers | {b"content-type": b"application/octet-stream"}).name == form
    assert form_of(headers | {b"content-type": b"application/msgpack"}).name == "msgpack"


# -- one more form ---------------------------------------------------------------------------


class CsvForm:
    """A row a line, its numbers apart by commas; for models of one float32 input and output."""

    def __init__(self, tables: ModelTables) -> None:
        self._tables = tables
        (self._reader,) = tables.readers.values()

    def parse(self, headers: Headers, body: Body, priority: int) -> InferRequest:
        lines = bytes(body).decode().split()
        array = np.array([line.split(",") for line in lines], dtype=self._reader.dtype)
        n = self._reader.rows_in("FP32", list(array.shape))
        return InferRequest(
            None,
            self._tables.rows(n, {self._reader.name: array}, None),
            self._tables.all_binary,
            header_timeout_ns(headers),
            priority,
            "csv",
        )

    def fixed_size_reader(self, size: int) -> None:
        return None

    def frame(self, request: InferRequest, n: int) -> None:
        return None

    def encode(
        self,
        request: InferRequest,
        outputs: Mapping[str, Array],
        model_parameters: Mapping[str, Any] | None,
    ) -> tuple[HeaderList, bytes]:
        (array,) = outputs.values()
        body = "".join(",".join(map(str, row)) + "\n" for row in array.tolist()).encode()
        return [(b"content-type", b"text/csv"), (b"content-length", b"%d" % len(body))], body


CSV = WireForm(
    name="csv",
    media_types=(b"text/csv",),
    lengths=(JsonLength.ABSENT,),
    bind=CsvForm,
    text_bytes=lambda headers, size: size,
    request_note="a row a line",
    answer_note="a row a line",
)


def test_a_form_is_added_by_one_entry() -> None:
    forms = WireForms((*FORMS.entries, CSV))
    codec = Codec(AFFINE, forms=forms)
    headers = {
        b"content-type": b"text/csv; charset=utf-8",
        b"x-request-priority": b"3",
        b"x-request-timeout-ms": b"20",
    }
    assert forms.of(headers) is CSV
    request = codec.parse(headers, b"1,2,3,4\n5,6,7,8\n")
    assert request.rows.tensors["x"].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert (request.form, request.priority, request.timeout_ns) == ("csv", 3, 20_000_000)
    assert codec.fixed_size_reader(request, 16) is None
    assert codec.frame(request, 2) is None
    fields, body = codec.encode(request, {"y": request.rows.tensors["x"] * 2})
    assert fields == [(b"content-type", b"text/csv"), (b"content-length", b"36")]
    assert body == b"2.0,4.0,6.0,8.0\n10.0,12.0,14.0,16.0\n"
    # The others are as they were, and the message knows of the new one.
    assert codec.parse(*body_of(GOOD)).form == "json"
    with pytest.raises(UnsupportedMediaType, match=r"arrow\.stream or text/csv was expected"):
        codec.parse({b"content-type": b"text/html"}, b"")
    with pytest.raises(UnsupportedMediaType):  # with a length nobody takes it
        codec.parse(headers | {b"inference-header-content-length": b"5"}, b"")


def test_the_libraries_of_forms_are_loaded_if_they_are_installed() -> None:
    loaded: list[str] = []
    others = [
        replace(CSV, name=name, media_types=(name.encode(),)) for name in ("text/b", "text/c")
    ]
    forms = WireForms([replace(CSV, load=lambda: loaded.append("csv")), *others])
    forms.load()
    assert loaded == ["csv"]


def test_two_forms_cannot_be_selected_by_the_same_headers() -> None:
    twin = replace(CSV, name="tsv")
    with pytest.raises(ValueError, match="csv and tsv both take text/csv"):
        WireForms((CSV, twin))


def test_the_message_names_what_is_known() -> None:
    with pytest.raises(UnsupportedMediaType) as caught:
        form_of({b"content-type": b"text/html"})
    assert caught.value.message == (
        "content type 'text/html' is not known here; application/json, application/octet-stream,"
        " text/plain, image/*, application/msgpack or application/vnd.apache.arrow.stream was"
        " expected; the bytes of a model's only"
        " input go as application/octet-stream"
    )


def test_a_request_bears_the_name_of_its_form() -> None:
    assert ask(AFFINE, GOOD).form == "json"
    head = b'{"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}'
    headers = {b"inference-header-content-length": b"%d" % len(head)}
    assert Codec(AFFINE).parse(headers, head).form == "binary"


def test_what_may_take_long_to_parse() -> None:
    packed, text = form_of({b"content-type": b"application/msgpack"}), form_of({})
    values = b"\xdd\xff\xff\xff\xff"
    assert (packed.is_slow(values), packed.is_slow(b"{")) == (True, False)
    assert (text.is_slow(values), text.is_slow(b"{")) == (False, True)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 1000),
        ({b"inference-header-content-length": b"60"}, 60),
        ({b"inference-header-content-length": b"sixty"}, 1000),
        ({b"inference-header-content-length": b"1" * 5000}, 1000),
        ({b"inference-header-content-length": b"0"}, 0),
        ({b"content-type": b"application/msgpack"}, 1000),
        ({b"content-type": b"image/png"}, 0),
        ({b"content-type": b"application/vnd.apache.arrow.stream"}, 8000),
    ],
)
def test_the_bytes_that_are_parsed_as_text(headers: Headers, expected: int) -> None:
    assert form_of(headers).text_bytes(headers, 1000) == expected
