"""A trial of the folder of tasks for `batchpool check`, which leaves it as it was."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from batchpool.core.errors import StartError


def check_task_folder(folder: Path) -> None:
    """Raises StartError where `serve` could not make this folder, or not write files in it.

    What is missing is not made: the nearest folder above is tried with one that is removed again.
    """
    try:
        if not folder.exists():
            above = folder.parent
            while not above.exists():
                above = above.parent
            with tempfile.TemporaryDirectory(prefix=".batchpool-", dir=above):
                return
        # The mode is the owner's to set, as serve does.
        folder.chmod(folder.stat().st_mode & 0o7777)
        with tempfile.TemporaryFile(dir=folder):
            pass
        for name in ("lock", "tasks.db"):
            with suppress(FileNotFoundError):
                os.close(os.open(folder / name, os.O_RDWR | os.O_CLOEXEC))
    except OSError as exc:
        raise StartError(
            f"the folder of tasks {folder} cannot be used: {exc.strerror}; set another state_dir,"
            " or see to it that this user may write there"
        ) from None
