"""Rows that are files of their own, as texts or pictures: those named, and all below a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from batchpool.bulk.chunk import Chunk
from batchpool.core.errors import StartError

BODY, PATH = "body", "path"


class FileReader:
    """Each file is a row: the columns `body`, its bytes, and `path`.

    The files below a folder come in the order of their paths; those whose names begin with a dot
    are left out. written: files and folders that the run writes, which are left out, too.
    """

    names: tuple[str, ...] | None = (BODY, PATH)

    def __init__(self, paths: Sequence[str], written: Sequence[str] = ()) -> None:
        left_out = _Written(written)
        self.files = [file for path in paths for file in _files(path, left_out)]
        self.total: int | None = len(self.files)

    def chunks(self, size: int, start: int) -> Iterator[Chunk]:
        for at in range(start, len(self.files), size):
            files = self.files[at : at + size]
            bodies: list[Any] = []
            unread: dict[int, tuple[str, str | bytes]] = {}
            for i, file in enumerate(files):
                try:
                    with open(file, "rb") as opened:
                        bodies.append(opened.read())
                except OSError as exc:
                    bodies.append(None)
                    unread[i] = f"the file cannot be read: {exc.strerror}", ""
            yield Chunk(at, len(files), {BODY: bodies, PATH: files}, files, unread)


class _Written:
    """The targets of a run, by their real paths; few names are the same, and need a look."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = {os.path.realpath(path) for path in paths}
        self._names = {os.path.basename(path) for path in (*paths, *self._paths)}

    def has(self, folder: str, name: str) -> bool:
        return name in self._names and os.path.realpath(os.path.join(folder, name)) in self._paths


def _files(path: str, left_out: _Written) -> Iterator[str]:
    if not os.path.isdir(path):
        if not os.path.exists(path):
            raise StartError(f"cannot read {path}: there is no such file or folder")
        yield path
        return

    def told(exc: OSError) -> None:
        raise StartError(f"cannot read {exc.filename}: {exc.strerror}")

    for folder, inner, names in os.walk(path, onerror=told):
        inner[:] = sorted(
            name for name in inner if not name.startswith(".") and not left_out.has(folder, name)
        )
        for name in sorted(names):
            if not name.startswith(".") and not left_out.has(folder, name):
                yield os.path.join(folder, name)
