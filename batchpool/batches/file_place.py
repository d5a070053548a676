"""A file that is open and its path: whether the path still leads to it.

An operator may move, remove or replace a folder under a process that has files of it open. What is
written goes on without an error then, into files that no other process will ever find.
"""

from __future__ import annotations

import os
from pathlib import Path


class FilePlace:
    """The place of a file that is there now. Raises OSError where there is none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity = _identity(path)

    def is_kept(self) -> bool:
        """True while the path leads to the same file, or cannot be followed for another reason
        than that there is no file."""
        try:
            return _identity(self._path) == self._identity
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # as of a disk that fails: what is written fails, too
            return True


def _identity(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
