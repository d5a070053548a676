"""Files of inputs and results that are too long for a row of the database.

A file is whole and on the disk before the row that names it is committed, and it is removed after
the commit by which no row names it any more. What a crash leaves in between is an orphan: a file
that no row names, or one that was not finished. `remove_orphans` finds both.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Container
from pathlib import Path

_LOG = logging.getLogger("batchpool.tasks")
LONG_BYTES = 64 * 1024  # deleting 1,000 rows of more than this takes the database long
_UNFINISHED = ".tmp"
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # of this process, and no fault of a file


class BodyFiles:
    """The files in one folder, by name. bytes: of all of them. room: tells how many bytes a new
    one may have; a longer one is an OSError, as on a full disk."""

    def __init__(self, folder: Path, room: Callable[[], int]) -> None:
        self._folder = folder
        self._room = room
        folder.mkdir(mode=0o700, exist_ok=True)
        self._is_new = False  # the folder has names that are not on the disk for certain
        self._removed: list[str] = []
        self._added: list[tuple[str, int]] = []
        self.bytes = sum(entry.stat().st_size for entry in self._files())

    def _files(self) -> list[os.DirEntry[str]]:
        with os.scandir(self._folder) as found:
            return [entry for entry in found if not entry.is_dir(follow_symlinks=False)]

    def write(self, name: str, body: bytes) -> None:
        """Write a file and have its bytes on the disk; the name is there with `settle`."""
        if len(body) > self._room():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path = self._folder / name
        partial = path.with_name(name + _UNFINISHED)
        self._added.append((name, len(body)))
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(body)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        partial.rename(path)
        self.bytes += len(body)
        self._is_new = True

    def read(self, name: str) -> bytes:
        """The bytes of a file."""
        return (self._folder / name).read_bytes()

    def read_kept(self, name: str) -> bytes:
        """As `read`; nothing of a file that is gone or cannot be read: no task may keep the others
        from running, and one without an input fails by itself."""
        try:
            return self.read(name)
        except OSError as exc:
            if exc.errno in _SHORTAGES:
                raise
            _LOG.error("the file %s of a task's input cannot be read: %s", name, exc.strerror)
            return b""

    def size(self, name: str) -> int:
        """The bytes of a file, 0 if it is not there."""
        try:
            return (self._folder / name).stat().st_size
        except FileNotFoundError:
            return 0

    def remove(self, name: str) -> None:
        """Remove a file once the transaction is committed."""
        self._removed.append(name)

    def settle(self) -> None:
        """Have the names of new files on the disk; before the commit."""
        if self._is_new:
            fd = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            self._is_new = False

    def committed(self) -> None:
        """The transaction is committed: remove what is to go."""
        self._added.clear()
        for name in self._removed:
            self._unlink(name)
        self._removed.clear()

    def rolled_back(self) -> None:
        """The transaction is undone: its new files go, and what was to go stays."""
        self._removed.clear()
        for name, _ in self._added:
            self._unlink(name)
            self._unlink(name + _UNFINISHED)
        self._added.clear()

    def _unlink(self, name: str) -> None:
        """Remove a file. One that stays is an orphan, since the transaction has ended already."""
        path = self._folder / name
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return
        except OSError as exc:
            _LOG.error("the file %s of a task cannot be removed: %s", name, exc.strerror)
            return
        if not name.endswith(_UNFINISHED):
            self.bytes -= size

    def remove_orphans(self, named: Container[str], log: Callable[[int], None]) -> None:
        """Remove every file that no row names. log: gets their number, if there are any. A folder
        among them is somebody else's."""
        orphans = [entry.name for entry in self._files() if entry.name not in named]
        for name in orphans:
            (self._folder / name).unlink()
        self.bytes = sum(entry.stat().st_size for entry in self._files())
        if orphans:
            log(len(orphans))
