"""Manifest: what a run was asked to do, so that its parts are joined with none of another run."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from batchpool.bulk.folders import FileReader
from batchpool.bulk.lines import is_stream
from batchpool.core.errors import StartError
from batchpool.core.tensors.spec import ModelSpec

FORM = 1
# What a run may be told otherwise and go on: what bad rows do, and where they go.
_FREE = frozenset({"bad_rows", "errors"})
_END_BYTES = 1 << 20

Manifest = dict[str, Any]


def input_prints(paths: list[str], reader: Any) -> list[Any]:
    """Sizes, times, and hashes of the ends of the input files, which tell changed ones."""
    if isinstance(reader, FileReader):
        every = hashlib.sha256()
        for file in reader.files:
            found = os.stat(file)
            every.update(f"{file}\0{found.st_size}\0{found.st_mtime_ns}\0".encode(errors="replace"))
        return [{"files": len(reader.files), "sha256": every.hexdigest()}]
    return [_print_of(path, reader.total) for path in paths]


def _print_of(path: str, total: int | None) -> dict[str, Any]:
    if is_stream(path):
        return {"path": path}
    found = os.stat(path)
    ends = hashlib.sha256()
    with open(path, "rb") as file:
        ends.update(file.read(_END_BYTES))
        file.seek(max(0, found.st_size - _END_BYTES))
        ends.update(file.read(_END_BYTES))
    return {
        "path": os.path.abspath(path),
        "size": found.st_size,
        "mtime_ns": found.st_mtime_ns,
        "rows": total,
        "sha256_of_ends": ends.hexdigest(),
    }


def tensors_print(spec: ModelSpec) -> str:
    """A hash of a model's tensors."""
    form = json.dumps(spec.to_wire(), sort_keys=True, default=str)
    return hashlib.sha256(form.encode()).hexdigest()


def check_same(old: Manifest, new: Manifest, folder: str) -> None:
    """StartError that names the first thing in which two manifests differ."""
    for name in sorted((old.keys() | new.keys()) - _FREE):
        was, now = old.get(name), new.get(name)
        if was != now:
            raise StartError(
                f"{folder} holds the parts of another run: its {name.replace('_', ' ')} was"
                f" {_brief(was, now)} and is {_brief(now, was)} now. The same command as before"
                " goes on from there; --restart begins anew"
            )


def _brief(value: Any, other: Any) -> str:
    """A value, or those members of it that the other one has not."""
    if isinstance(value, list) and isinstance(other, list) and len(value) == len(other):
        for mine, theirs in zip(value, other, strict=True):
            if mine != theirs:
                return _brief(mine, theirs)
    if isinstance(value, dict) and isinstance(other, dict):
        value = {key: part for key, part in value.items() if other.get(key) != part}
    text = json.dumps(value)
    return text if len(text) <= 200 else text[:197] + "..."
