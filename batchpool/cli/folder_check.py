"""A trial of the folders of tasks and batches for `batchpool check`, which leaves all as it was."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from batchpool.batches.own_folder import check_owner
from batchpool.core.errors import StartError


def check_task_folder(folder: Path) -> str:
    """Raises StartError where `serve` could not make this folder, not write files in it, or not use
    the database there.

    What is missing is not made: the nearest folder above is tried with one that is removed again.
    Returns what was not looked at, and why: the database of a pool that runs is that pool's alone.
    """
    if not _try_folder(folder, "tasks"):
        return ""
    return _check_database(folder)


def check_batch_folder(folder: Path) -> None:
    """As `check_task_folder`, for files and batches, whose database is not looked into."""
    _try_folder(folder, "batches")


def _try_folder(folder: Path, name: str) -> bool:
    """True for a folder that is there and can be used, with its database; False for one that can be
    made. name: of the database, and of what is in it."""
    try:
        if not folder.exists():
            above = folder.parent
            while not above.exists():
                above = above.parent
            with tempfile.TemporaryDirectory(prefix=".batchpool-", dir=above):
                return False
        check_owner(folder)
        # The mode is the owner's to set, as serve does.
        folder.chmod(folder.stat().st_mode & 0o7777)
        with tempfile.TemporaryFile(dir=folder):
            pass
        with suppress(FileNotFoundError):
            os.close(os.open(folder / f"{name}.db", os.O_RDWR | os.O_CLOEXEC))
        return True
    except OSError as exc:
        raise StartError(
            f"the folder of {name} {folder} cannot be used: {exc.strerror}; set another state_dir,"
            " or see to it that this user may write there"
        ) from None


def _check_database(folder: Path) -> str:
    """Open the database, if there is one that no process has."""
    from batchpool.tasks.schema import open_database
    from batchpool.tasks.store import StoreAway

    lock = None
    with suppress(FileNotFoundError):
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    try:
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path = folder / "tasks.db"
        if path.exists() and path.stat().st_size:
            open_database(path).close()
    except BlockingIOError:
        return f"a pool that runs has the tasks in {folder}: their database was not looked at"
    except StoreAway as exc:
        raise StartError(str(exc)) from None
    finally:
        if lock is not None:
            os.close(lock)
    return ""
