"""Manifest: what a run was asked to do, so that its parts are joined with none of another run."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from typing import Annotated, Any

import msgspec

from batchpool.bulk.folders import FileReader
from batchpool.bulk.lines import is_stream
from batchpool.core.errors import StartError
from batchpool.core.tensors.spec import ModelSpec

FORM = 1
# What makes a run another one, as messages say it. Where bad rows go is no part of that, nor is
# what they do.
_SAID = {
    "form": "the form of the parts",
    "batchpool": "the version of batchpool",
    "input": "the input",
    "input_format": "the format of the input",
    "output_format": "the format of the output",
    "model": "the model",
    "model_tensors": "the model has other inputs, outputs or parameters now",
    "columns": "--map (input=column)",
    "kept_columns": "--keep",
    "outputs": "--outputs",
    "parameters": "--parameter",
    "chunk_rows": "--chunk-rows",
}
_END_BYTES = 1 << 20

Manifest = dict[str, Any]


def input_prints(paths: list[str], reader: Any) -> list[Any]:
    """Sizes, times, and hashes of the ends of the input files, which tell changed ones."""
    if isinstance(reader, FileReader):
        every = hashlib.sha256()
        for file in reader.files:
            try:
                found = os.stat(file)
            except OSError as exc:  # a row that cannot be read
                every.update(f"{file}\0{exc.errno}\0".encode(errors="replace"))
                continue
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
    """A hash of a model's tensors. How batches are formed of them is none of it."""
    form = json.dumps(replace(spec, sized_by_length=()).to_wire(), sort_keys=True, default=str)
    return hashlib.sha256(form.encode()).hexdigest()


class _Form(msgspec.Struct):
    """A manifest, as far as its values are more than compared and shown."""

    chunk_rows: Annotated[int, msgspec.Meta(ge=1)] | None = None
    input: dict[str, Any] | list[dict[str, Any]] | None = None


def check_form(manifest: Any) -> None:
    """ValueError for what no run has written."""
    msgspec.convert(manifest, _Form)


def check_same(old: Manifest, new: Manifest, folder: str) -> None:
    """StartError that says in which things two manifests differ."""
    differ = []
    for name in _SAID:
        was, now = old.get(name), new.get(name)
        if was != now:
            differ.append(_difference(name, was, now))
    if differ:
        raise StartError(
            f"{folder} holds the parts of another run: {'; '.join(differ)}. As it was before, it"
            " goes on from there; --restart drops these parts and begins anew"
        )


def _difference(name: str, was: Any, now: Any) -> str:
    said = _SAID[name]
    if name == "model_tensors":
        return said
    if name == "input" and isinstance(was, list) and isinstance(now, list):
        changed = [(a, b) for a, b in zip(was, now, strict=False) if a != b]
        if len(was) == len(now) and changed[0][0].get("path") == changed[0][1].get("path"):
            return _file_difference(*changed[0])
        was, now = ([file.get("path", file) for file in files] for files in (was, now))
    return f"{said} was {_words(was)} then and is {_words(now)} now"


def _file_difference(was: dict[str, Any], now: dict[str, Any]) -> str:
    """The change in a file, or in the files of a folder, that are named as before."""
    path = now.get("path", "the folder of the input")
    for name, unit in (("files", "files"), ("rows", "rows"), ("size", "bytes")):
        before, after = was.get(name), now.get(name)
        if before != after and isinstance(before, int) and isinstance(after, int):
            return f"{path} had {before:,} {unit} then and has {after:,} now"
    if "sha256_of_ends" in now and was.get("sha256_of_ends") == now["sha256_of_ends"]:
        return f"{path} was written again since"
    return f"{path} has changed since"


def _words(value: Any) -> str:
    """A setting as the command line has it."""
    if isinstance(value, dict):
        value = [f"{name}={part}" for name, part in value.items()]
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    text = "not given" if value in ("", None) else str(value)
    return text if len(text) <= 200 else text[:197] + "..."
