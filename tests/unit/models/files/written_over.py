"""A file that is written over in place while a model of it is loaded."""

from __future__ import annotations

from pathlib import Path


def write_over(path: Path, whole: bool = False) -> None:
    """Zeros in place of the latter half of a file, or of all of it, as a copy of another file onto
    it would leave."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(0 if whole else size // 2)
        file.write(bytes(size if whole else size - size // 2))
