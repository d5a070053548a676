"""The place of the store of tasks on the disk: whether its folder is where it was opened."""

from __future__ import annotations

from pathlib import Path

from batchpool.batches.file_place import FilePlace
from batchpool.tasks.store import StoreGone


class StorePlace:
    """The place of the database in a folder, which is there. Raises OSError where it is not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._database = FilePlace(folder / "tasks.db")

    def check(self) -> None:
        """Raise StoreGone where the database is not in its folder any more: a task that is written
        into it would be promised, and found by no other process."""
        if not self._database.is_kept():
            raise StoreGone(
                f"the folder of tasks {self._folder} was moved, removed or replaced while the pool"
                " used it; its tasks go with it: put it back while the pool is stopped"
            )
