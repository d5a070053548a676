"""JSON files of a model's folder: errors name the file and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # with which such a file begins


def json_object(path: Path) -> dict[str, Any]:
    """The object in a file, {} where there is no file. Raises ValueError that names it."""
    found = _json_of(path, {})
    if not isinstance(found, dict):
        raise ValueError(f"{path.absolute()} holds a JSON {_kind(found)}; an object was expected")
    return found


def json_objects(path: Path) -> list[dict[str, Any]]:
    """The list of objects in a file, [] where there is no file. Raises ValueError that names it."""
    found = _json_of(path, [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ValueError(f"{path.absolute()} holds no JSON list of objects, which was expected")
    return found


@contextmanager
def values_of(path: Path) -> Iterator[None]:
    """Name the file in errors of the block, which reads values that come from it: one that is
    missing, or of another kind, becomes a ValueError."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        told = f"no {error} in it" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path.absolute()} has values that were not expected: {told}") from error


def check_no_lfs_pointer(path: Path) -> None:
    """Raise ValueError for a file that Git LFS has left a pointer of."""
    with path.open("rb") as file:
        begins = file.read(len(_LFS_POINTER))
    if begins == _LFS_POINTER:
        raise ValueError(
            f"{path.absolute()} is a pointer of Git LFS and not the file itself: run `git lfs pull`"
            " in its repository"
        )


def _json_of(path: Path, absent: Any) -> Any:
    if not path.is_file():
        return absent
    check_no_lfs_pointer(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.absolute()} is no JSON: {error}") from None


def _kind(value: Any) -> str:
    kinds = {list: "list", str: "text", bool: "truth value", type(None): "null"}
    return kinds.get(type(value), "number")
