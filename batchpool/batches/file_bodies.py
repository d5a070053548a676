"""The bytes of files, each under its id in one folder: mode 0600, made by nobody but this process.

An id is made by the server, from a token; no name that a caller sends ever becomes a path.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from batchpool.batches.file_place import FilePlace

_MODE, _FOLDER_MODE = 0o600, 0o700


class FileBodies:
    """The bytes in a folder, which is made if there is none. Raises OSError as system calls do."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
        self._folder = folder
        self._place = FilePlace(folder)

    def are_in_place(self) -> bool:
        """True while the path of the folder leads to it."""
        return self._place.is_kept()

    def path(self, identifier: str) -> Path:
        """Where the bytes of a file are."""
        return self._folder / identifier

    def names(self) -> list[str]:
        """The ids of all files that have bytes; a folder among them is somebody else's."""
        with os.scandir(self._folder) as found:
            return [each.name for each in found if not each.is_dir(follow_symlinks=False)]

    def write(self, identifier: str, offset: int, piece: bytes) -> None:
        """Write bytes at a place; the same bytes may come twice."""
        fd = self._open(identifier, os.O_WRONLY | os.O_CREAT)
        try:
            rest = memoryview(piece)
            while rest:
                n = os.pwrite(fd, rest, offset)
                rest, offset = rest[n:], offset + n
        finally:
            os.close(fd)

    def settle(self, identifier: str, size: int) -> None:
        """Cut a file to its size, and wait until the disk has it."""
        fd = self._open(identifier, os.O_WRONLY | os.O_CREAT)
        try:
            os.ftruncate(fd, size)
            os.fsync(fd)
        finally:
            os.close(fd)

    def settle_names(self) -> None:
        """Wait until the disk has the names of all files."""
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read(self, identifier: str, offset: int, most: int) -> bytes:
        """At most so many bytes from a place, fewer at the end alone."""
        fd = self._open(identifier, os.O_RDONLY)
        try:
            return os.pread(fd, most, offset)
        finally:
            os.close(fd)

    def size(self, identifier: str) -> int:
        """The bytes of a file that are there, 0 where it is not."""
        try:
            return self.path(identifier).stat().st_size
        except FileNotFoundError:
            return 0

    def delete(self, identifier: str) -> None:
        """Drop the bytes of a file, if there are any."""
        with suppress(FileNotFoundError):
            os.unlink(self.path(identifier))

    def free_and_total(self) -> tuple[int, int]:
        """Bytes of the file system that are free, and all of them."""
        found = os.statvfs(self._folder)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def close(self) -> None:
        """Let go of the folder."""
        self._place.close()

    def _open(self, identifier: str, flags: int) -> int:
        return os.open(self.path(identifier), flags | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
