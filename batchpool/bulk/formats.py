"""Formats of input and output files, by their names' ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from batchpool.bulk.arrays import ArrayReader
from batchpool.bulk.chunk import Reader
from batchpool.bulk.folders import FileReader
from batchpool.bulk.lines import STDIN, CsvReader, LineReader
from batchpool.bulk.tables import TableReader
from batchpool.core.errors import ConfigError


@dataclass(frozen=True)
class Format:
    """One format. suffixes: of files that have it. reader: None for one that is only written.
    writes: true if an output may have it. extra: needs pyarrow."""

    name: str
    suffixes: tuple[str, ...]
    reader: Callable[[Sequence[str]], Reader]
    writes: bool = True
    extra: bool = False


FORMATS = {
    format.name: format
    for format in (
        Format("jsonl", (".jsonl", ".ndjson"), LineReader),
        Format("csv", (".csv",), CsvReader),
        Format("tsv", (".tsv", ".tab"), partial(CsvReader, separator="\t")),
        Format("npy", (".npy",), ArrayReader),
        Format("parquet", (".parquet", ".pq"), partial(TableReader, parquet=True), extra=True),
        Format(
            "arrow",
            (".arrow", ".arrows", ".feather", ".ipc"),
            partial(TableReader, parquet=False),
            extra=True,
        ),
        Format("files", (), FileReader, writes=False),
    )
}
_GZIP = ".gz"
_LINES = tuple(end for name in ("jsonl", "csv", "tsv") for end in FORMATS[name].suffixes)
_TO_STDOUT = ("jsonl", "csv", "tsv")
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".tar", ".tgz", ".7z", ".npz")
_ARCHIVES = (".zip", ".tar", ".tgz", ".7z", ".npz")  # of several files
# They hold many rows for sure, and are no text or picture that a model takes as a whole.
_OTHER_TABLES = (
    ".json", ".xlsx", ".xls", ".ods", ".h5", ".hdf5", ".pkl", ".pickle", ".orc", ".avro",
    ".sqlite", ".db",
)  # fmt: skip
OUTPUTS = tuple(name for name, format in FORMATS.items() if format.writes)


def input_format(paths: Sequence[str], named: str | None) -> Format:
    """The format of the inputs, which all have one; ConfigError else."""
    if STDIN in paths:
        if len(paths) > 1 or named not in (None, "jsonl"):
            raise ConfigError(
                "the input - is JSON Lines on stdin, alone; write other formats to a file"
            )
        return FORMATS["jsonl"]
    if named is not None:
        return FORMATS[named]
    for path in paths:
        if not os.path.isdir(path) and _suffix(_unpacked(path)) in _PACKED:
            unpack = "unpack it"
            if _suffix(path) not in _ARCHIVES:
                unpack += f", as with --format jsonl <(zcat {path})"
            raise ConfigError(
                f"{path} is packed, and is read by no format: {unpack}; --format files makes it one"
                " row, of its bytes"
            )
        if not os.path.isdir(path) and _suffix(path) in _OTHER_TABLES:
            lines = "; --format jsonl reads it where each line is an object"
            raise ConfigError(
                f"{path} is read by no format: write its rows as JSON Lines, CSV or Parquet"
                f"{lines if _suffix(path) == '.json' else ''}; --format files makes it one row, of"
                " its bytes"
            )
    found = {_by_suffix(_unpacked(path)).name: path for path in paths}
    if len(found) > 1:
        kinds = ", ".join(f"{path} ({name})" for name, path in found.items())
        raise ConfigError(f"inputs of several formats: {kinds}; one run reads one")
    return FORMATS[next(iter(found))]


def check_rows_of_folders(files: Iterable[str]) -> None:
    """ConfigError for a file below a folder that holds many rows, as its name says."""
    for path in files:
        end = _suffix(path)
        if end in _PACKED or any(end in format.suffixes for format in FORMATS.values()):
            pattern = os.path.join(os.path.dirname(path), "*" + os.path.splitext(path)[1])
            raise ConfigError(
                f"each file below a folder is one row, and {path} is packed or holds many: name"
                f" the files, as {pattern}; --format files makes each one row, of its bytes"
            )


def output_format(path: str, named: str | None) -> Format:
    """The format of the output; ConfigError where its name does not tell one."""
    if named is not None:
        if path == STDIN and named not in _TO_STDOUT:
            raise ConfigError(f"stdout takes {', '.join(_TO_STDOUT)}, and not {named}")
        return FORMATS[named]
    if path == STDIN:
        return FORMATS["jsonl"]
    found = _by_suffix(path)
    if not found.writes:
        ends = ", ".join(suffix for name in OUTPUTS for suffix in FORMATS[name].suffixes)
        raise ConfigError(f"-o {path}: a name that ends in {ends} was expected, or --out-format")
    return found


def _by_suffix(path: str) -> Format:
    end = _suffix(path)
    if os.path.isdir(path):
        return FORMATS["files"]
    for format in FORMATS.values():
        if end in format.suffixes:
            return format
    return FORMATS["files"]


def _unpacked(path: str) -> str:
    """The name of a file of lines without its .gz, which is unpacked as it is read."""
    inner = path[: -len(_GZIP)] if path.lower().endswith(_GZIP) else path
    return inner if _suffix(inner) in _LINES else path


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()
