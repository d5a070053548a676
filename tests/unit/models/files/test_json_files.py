"""JSON files of a folder that cannot be read are named, with what is wrong in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchpool.models.files.json_files import json_object, json_objects, values_of


def test_what_is_there_is_read_and_what_is_not_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    assert (json_object(path), json_objects(path)) == ({}, [])
    path.write_text('{"a": 1}')
    assert json_object(path) == {"a": 1}
    path.write_text('[{"a": 1}, {}]')
    assert json_objects(path) == [{"a": 1}, {}]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"{", "is no JSON"),
        (b"", "is no JSON"),
        (b"\xff\xfe", "is no JSON: .* byte 0xff"),
        (b"[" * 100_000, "is no JSON"),
        (b"7", "holds"),
        (b"null", "holds"),
        (b'"text"', "holds"),
        (b"version https://git-lfs.github.com/spec/v1", "is a pointer of Git LFS"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, raw: bytes, reason: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(raw)
    for read in (json_object, json_objects):
        with pytest.raises(ValueError, match=rf"^{path} {reason}"):
            read(path)


def test_an_object_and_a_list_of_objects_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for text in ("[]", "[{}]"):
        path.write_text(text)
        with pytest.raises(ValueError, match=f"^{path} holds a JSON list; an object"):
            json_object(path)
    for text in ("{}", "[7]", "[{}, null]"):
        path.write_text(text)
        with pytest.raises(ValueError, match=f"^{path} holds no JSON list of objects"):
            json_objects(path)


def test_values_of_another_kind_name_the_file_they_stand_in(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with (
        pytest.raises(ValueError, match=f"^{path} has values .*: no 'size' in it"),
        values_of(path),
    ):
        {}["size"]
    for wrong in ("wide", None):
        with pytest.raises(ValueError, match=f"^{path} has values that were not"), values_of(path):
            int(wrong)  # type: ignore[call-overload]
