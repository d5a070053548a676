"""Parts of an output: each chunk's rows in a file of its own, committed one by one.

    OUT.parts/manifest.json            what the run was asked to do
    OUT.parts/part-00000042.rows       the good rows of chunk 42, as the output's format has them
    OUT.parts/part-00000042.bad        its bad rows, a line of JSON each; none without such rows
    OUT.parts/part-00000042.json       the sizes and checksums of both: it makes the part count

Each file is written beside and renamed, what has rows in it is flushed to the disk before that,
and the record makes the others count, if they have its sizes: whatever ends a run, a part is there
as a whole or it is not. The names are flushed once, after all three: a disk takes long for that.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

import msgspec

from batchpool.bulk.manifest import Manifest, check_form, check_same
from batchpool.bulk.targets import check_free
from batchpool.core.errors import StartError

_BLOCK_BYTES = 1 << 20
_OWN = re.compile(r"(manifest\.json|part-\d{8}\.(rows|bad|json))(\.tmp)?|whole\.tmp")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _Written(msgspec.Struct):
    """A file of a part."""

    size: int
    crc32: int


class _Record(msgspec.Struct):
    """The record of a part, as far as it is used. n: good rows."""

    rows: _Written
    n: int
    bad_rows: int
    bad: _Written | None = None


class Parts:
    """The folder of one output's parts, which one run has at a time. done: how many count."""

    def __init__(self, out: str) -> None:
        self.folder = f"{out}.parts"
        self.done = 0
        self._lock: int | None = None
        self._is_own = False

    def open(self, manifest: Manifest, size: int, *, restart: bool, goes_on: bool) -> Manifest:
        """Take the folder, with the parts of the same run; returns its manifest.

        size: rows of a chunk, where neither the manifest nor the run before says it. goes_on: an
        input that can be read again. StartError where another run has the folder, or left parts
        that are not this one's.
        """
        with told(self.folder):
            if not restart and not os.path.exists(self.folder):
                check_free(manifest.get("errors", ""), "--errors")
            os.makedirs(self.folder, exist_ok=True)
            self._lock = os.open(self._path("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StartError(f"another run is writing to {self.folder} now") from None
            self._is_own = True
            if restart:
                self._clear()
            old = self._read_manifest()
            if not self._counts(0):  # nothing is there that could be lost
                if not restart:
                    check_free(manifest.get("errors", ""), "--errors")
                self._clear()
                manifest = {**manifest, "chunk_rows": manifest["chunk_rows"] or size}
                self._write_manifest(manifest)
                return manifest
            if not goes_on:
                raise StartError(
                    f"{self.folder} holds parts, and rows from a pipe cannot be read again;"
                    " --restart begins anew"
                )
            if old is None:
                raise self._damaged()
            if manifest["chunk_rows"] is None:
                manifest = {**manifest, "chunk_rows": old.get("chunk_rows")}
            check_same(old, manifest, self.folder)
            if manifest["chunk_rows"] is None:
                raise self._damaged()
            if manifest.get("errors") != old.get("errors"):
                # A file at the path of before is this run's own, which was ended at its end.
                check_free(manifest.get("errors", ""), "--errors")
                self._write_manifest(manifest)
            while self._counts(self.done):
                self.done += 1
        return manifest

    def commit(self, rows: Callable[[IO[bytes]], Any], bad: bytes, facts: dict[str, Any]) -> None:
        """Write the next part. rows: writes its good rows. facts: what its record says besides."""
        with told(self.folder):
            record = {**facts, "rows": write_file(self.rows_path(self.done), rows)}
            if bad:
                record["bad"] = write_file(self.bad_path(self.done), lambda file: file.write(bad))
            content = json.dumps(record).encode()
            write_file(self._record_path(self.done), lambda file: file.write(content), sync=False)
            sync_folder(self.rows_path(self.done))
        self.done += 1

    def records(self) -> Iterator[dict[str, Any]]:
        """The records of all parts that count, in order."""
        for number in range(self.done):
            record = self._record(number)
            assert record is not None
            yield record

    def checked(self, number: int) -> str:
        """The path of a part's rows, which are those that were written; StartError else."""
        record = self._record(number) or {}
        path = self.rows_path(number)
        if record.get("rows") != _print_of(path):
            raise StartError(
                f"{path} is not as it was written: the disk or somebody has changed it; remove it"
                " and run the same command again, which does that part anew"
            )
        return path

    def rows_path(self, number: int) -> str:
        return self._path(f"part-{number:08d}.rows")

    def bad_path(self, number: int) -> str:
        return self._path(f"part-{number:08d}.bad")

    def _record_path(self, number: int) -> str:
        return self._path(f"part-{number:08d}.json")

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def _record(self, number: int) -> dict[str, Any] | None:
        try:
            with open(self._record_path(number), "rb") as file:
                found: dict[str, Any] = json.load(file)
            msgspec.convert(found, _Record)
        except (FileNotFoundError, ValueError, RecursionError):
            return None
        return found

    def _counts(self, number: int) -> bool:
        """True if a part is there as a whole, by its record and the sizes of its files."""
        record = self._record(number)
        if record is None:
            return False
        for name, path in (("rows", self.rows_path(number)), ("bad", self.bad_path(number))):
            if name in record and _size(path) != record[name]["size"]:
                return False
        return True

    def _read_manifest(self) -> Manifest | None:
        try:
            with open(self._path("manifest.json"), "rb") as file:
                found: Manifest = json.load(file)
            check_form(found)
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):
            raise self._damaged() from None
        return found

    def _damaged(self) -> StartError:
        return StartError(
            f"{self._path('manifest.json')} is not as a run wrote it; --restart drops the parts"
            " beside it and begins anew"
        )

    def _write_manifest(self, manifest: Manifest) -> None:
        write_whole(self._path("manifest.json"), json.dumps(manifest, indent=1).encode())

    def _clear(self) -> None:
        """Remove what runs have left here; files of others stay."""
        for name in os.listdir(self.folder):
            if _OWN.fullmatch(name):
                os.remove(self._path(name))

    def remove(self) -> None:
        """The parts are needed no more, as the output is whole, or there are none."""
        self._is_own = False
        with suppress(OSError):
            self._clear()
            os.remove(self._path("lock"))
            os.rmdir(self.folder)
        self.close()

    def close(self) -> None:
        """Let another run have the folder; one without a part that counts is removed."""
        if self._is_own and not self._counts(0):
            self.remove()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextmanager
def told(place: str) -> Iterator[None]:
    """A refusal of the disk as StartError; what is committed stays."""
    try:
        yield
    except OSError as exc:
        why = exc.strerror or str(exc)
        if exc.errno in _FULL:
            why += "; make room and run the same command again: it goes on from the last part"
        raise StartError(f"cannot write to {place}: {why}") from None


class Summed:
    """A file that is written, and the checksum of what went into it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = self.crc32 = 0

    def write(self, block: Any) -> int:
        view = memoryview(block).cast("B")
        self.crc32 = zlib.crc32(view, self.crc32)
        self.size += len(view)
        self._file.write(view)
        return len(view)

    closed = False

    def flush(self) -> None:
        self._file.flush()


def write_file(path: str, write: Callable[[Any], Any], *, sync: bool = True) -> dict[str, int]:
    """Write a file so that it is there as a whole or not at all; returns its size and checksum.

    sync: not where one that is cut off by a power cut is told from a whole one.
    """
    beside = f"{path}.tmp"
    try:
        with open(beside, "wb") as file:
            summed = Summed(file)
            write(summed)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.rename(beside, path)
    except BaseException:
        with suppress(OSError):
            os.remove(beside)  # a full disk gets its room back
        raise
    return {"size": summed.size, "crc32": summed.crc32}


def write_whole(path: str, content: bytes) -> None:
    write_file(path, lambda file: file.write(content))
    sync_folder(path)


def sync_folder(path: str) -> None:
    """Make the names in a file's folder durable."""
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _print_of(path: str) -> dict[str, int]:
    size = crc32 = 0
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            size += len(block)
            crc32 = zlib.crc32(block, crc32)
    return {"size": size, "crc32": crc32}


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None
