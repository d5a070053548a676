"""The form of an upload: however it is cut, and whatever a stranger sends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.core.errors import InvalidRequest, PoolError, TooLarge, UnsupportedMediaType
from batchpool.frontend.http.upload_form import MOST_BYTES_BESIDE, UploadForm
from tests.unit.garbage import left_garbage

TYPE = {b"content-type": b"multipart/form-data; boundary=b"}
PURPOSE = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="%b"\r\n\r\n%b\r\n'
END = b"--b--\r\n"


def fed(*pieces: bytes) -> tuple[UploadForm, bytes]:
    form = UploadForm(TYPE)
    return form, b"".join(map(form.feed, pieces))


def test_a_form_that_is_closed_is_freed_without_the_garbage_collector() -> None:
    """The parser refers to its form, and the form to the last piece of a file."""
    form, _ = fed(FILE % (b"in.jsonl", b"x" * 1000))
    form.close()
    with left_garbage() as left:
        for _ in range(2):
            form, _ = fed(FILE % (b"in.jsonl", b"x" * 1000))
            form.close()
        del form
    assert left == []


@given(
    content=st.binary(max_size=80).map(lambda raw: raw.replace(b"z", b"\r\n--")),
    step=st.integers(1, 20),
    file_first=st.booleans(),
)
def test_a_form_means_the_same_however_it_is_cut(
    content: bytes, step: int, file_first: bool
) -> None:
    if b"\r\n--b" in b"\r\n" + content:
        return  # the boundary itself
    file = FILE % (b"in.jsonl", content)
    whole = (file + PURPOSE if file_first else PURPOSE + file) + END
    form, found = fed(*(whole[at : at + step] for at in range(0, len(whole), step)))
    form.check_end()
    assert found == content
    assert form.fields == {"purpose": "batch"}
    assert form.filename == "in.jsonl"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"../../etc/passwd", "passwd"),
        (b"C:\\\\x\\\\y", "y"),
        (b"x\\\\y", "y"),
        (b"/", "file"),
        (b"", "file"),
        (b"a\x00\x1bb", "ab"),
        (b"\xff", "\ufffd"),
        (b"n" * 1000, "n" * 255),
    ],
)
def test_a_name_is_a_label_and_no_path(name: bytes, shown: str) -> None:
    form, _ = fed(PURPOSE + FILE % (name, b"x") + END)
    assert form.filename == shown


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"content-type": b"application/json"},
        {b"content-type": b"multipart/form-data"},
        {b"content-type": b"multipart/form-data; boundary="},
        {b"content-type": b"multipart/form-data; boundary=" + b"b" * 71},
        {**TYPE, b"content-encoding": b"gzip"},
    ],
)
def test_another_body_is_refused_by_its_headers(headers: dict[bytes, bytes]) -> None:
    with pytest.raises(UnsupportedMediaType):
        UploadForm(headers)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"no form at all", InvalidRequest),
        (b"--b\r\nno header\r\n\r\n", InvalidRequest),
        (b"--b\r\n" + b"X: y\r\n" * 100, InvalidRequest),
        (b"--b\r\nX: " + b"y" * 100_000, InvalidRequest),
        (PURPOSE.replace(b"batch", b"b" * 5000), TooLarge),
        (b"".join(PURPOSE.replace(b"purpose", b"p%d" % n) for n in range(40)), InvalidRequest),
        (FILE % (b"a", b"1") + FILE % (b"b", b"2"), InvalidRequest),
        (b"--b\r\n\r\n\r\n" * 40, InvalidRequest),
        (FILE % (b"a", b"\r\n--b!" * 100), InvalidRequest),
    ],
)
def test_what_a_form_must_not_have_is_refused_at_once(body: bytes, kind: type[PoolError]) -> None:
    with pytest.raises(kind):
        fed(body)


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"", b"\r\n"),
        (b"", b"--b\r\nX: y\r\n\r\n"),
        (b"--b\r\n\r\n", b"c"),
        (b"--b\r\n", b"X: y\r\n"),
    ],
)
def test_a_form_without_a_file_does_not_go_on_for_ever(begin: bytes, piece: bytes) -> None:
    form, _ = fed(begin)
    with pytest.raises((InvalidRequest, TooLarge)):
        for _ in range(MOST_BYTES_BESIDE):
            form.feed(piece)


def test_a_file_is_as_long_as_it_likes_beside_a_small_form() -> None:
    form, found = fed(PURPOSE + FILE[:-2] % (b"a", b""), *[b"x" * 999 + b"\n"] * 99, b"\r\n" + END)
    form.check_end()
    assert len(found) == 99_000


@pytest.mark.parametrize(
    ("body", "param"),
    [(PURPOSE + FILE % (b"a", b"x"), None), (PURPOSE + END, "file"), (b"", None)],
)
def test_a_form_without_its_end_or_file_is_refused(body: bytes, param: str | None) -> None:
    form, _ = fed(body)
    with pytest.raises(InvalidRequest) as refused:
        form.check_end()
    assert refused.value.param == param


def test_what_follows_the_end_is_nobodys() -> None:
    form, found = fed(FILE % (b"a", b"x") + END, b"more", FILE % (b"b", b"y"))
    assert (found, form.ended) == (b"x", True)
    with pytest.raises(InvalidRequest) as refused:
        form.required("purpose")
    assert refused.value.param == "purpose"
