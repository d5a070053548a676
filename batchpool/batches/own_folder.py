"""Folders of what must outlive a pool: each is one user's alone."""

from __future__ import annotations

import errno
import os
import pwd
from pathlib import Path

_MODE = 0o700


def make_own_folder(folder: Path) -> None:
    """Make a folder for the pool's user alone, or take one that is there. Raises OSError where that
    cannot be, as `check_owner` does."""
    folder.mkdir(_MODE, parents=True, exist_ok=True)
    check_owner(folder)
    folder.chmod(_MODE)


def check_owner(folder: Path) -> None:
    """Raise PermissionError for a folder of another user, which root could take: the files that
    root makes there are of no use to the pool of that user afterwards, which would lose what it
    kept."""
    owner, own = folder.stat().st_uid, os.geteuid()
    if owner != own:
        raise PermissionError(
            errno.EPERM, f"It belongs to {_name(owner)}, and this pool runs as {_name(own)}"
        )


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
