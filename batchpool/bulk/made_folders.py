"""Folders that a run makes for the files it writes, and drops again where they stay empty."""

from __future__ import annotations

import os
from contextlib import suppress


class MadeFolders:
    """The folders that one run has made."""

    def __init__(self) -> None:
        self._made: list[str] = []

    def make_for(self, path: str) -> None:
        """Make the folder of a file, and those above it; OSError where that cannot be."""
        folder = os.path.dirname(os.path.abspath(path))
        missing = []
        above = folder
        while not os.path.isdir(above):
            missing.append(above)
            above = os.path.dirname(above)
        os.makedirs(folder, exist_ok=True)
        self._made = missing + self._made

    def drop_empty(self) -> None:
        """Remove those that are empty, the innermost first."""
        for folder in self._made:
            with suppress(OSError):
                os.rmdir(folder)
        self._made = []
