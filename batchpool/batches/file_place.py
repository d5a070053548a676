"""A file or folder that is in use, and its path: whether the path still leads to it.

An operator may move, remove or replace a folder under a process that has files of it open. What is
written goes on without an error then, into files that no other process will ever find.
"""

from __future__ import annotations

import os
from pathlib import Path


class FilePlace:
    """The place of a file or folder that is there now. Raises OSError where there is none.

    It is held open, since the number of a file is given to another one once nobody has it, and some
    file systems forget it. The descriptor is none for reading or writing: to close one of those
    would end the locks that SQLite has on the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        self._identity = _identity(os.fstat(self._fd))

    def is_kept(self) -> bool:
        """True while the path leads to the same file, or cannot be followed for another reason
        than that there is no file."""
        try:
            return _identity(os.stat(self._path)) == self._identity
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # as of a disk that fails: what is written fails, too
            return True

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
