"""The place of the store of tasks on the disk: whether its folder is where it was opened."""

from __future__ import annotations

from pathlib import Path

from batchpool.batches.file_place import FilePlace
from batchpool.tasks.store import StoreGone


class StorePlace:
    """The place of a database and of the bodies beside it, which are there. Raises OSError where
    they are not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts = [FilePlace(folder / name) for name in ("tasks.db", "bodies")]

    def check(self) -> None:
        """Raise StoreGone where they are not in their folder any more: a task that is written there
        would be promised, and found by no other process."""
        if not all(part.is_kept() for part in self._parts):
            raise StoreGone(
                f"the folder of tasks {self._folder} was moved, removed or replaced while the pool"
                " used it; its tasks go with it: put it back while the pool is stopped"
            )

    def close(self) -> None:
        """Let go of them."""
        for part in self._parts:
            part.close()
