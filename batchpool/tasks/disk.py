"""The disk below a store: whether it has room for new tasks, and a reserve for what is there.

A full disk must not stop what has been taken: results are still to be written and collected, and
deleting from a database takes bytes too. So new tasks are refused while some of the disk is free,
and a file of bytes that nobody needs is given up when a write fails all the same.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sqlite3
from pathlib import Path

from batchpool.tasks.store import StoreAway, StoreFull

_LOG = logging.getLogger("batchpool.tasks")
_KEPT_FREE_BYTES = 2**30
_KEPT_FREE_SHARE = 20  # one of so many bytes of the disk, where that is less
_RESERVE_BYTES = 64 * 2**20
_RESERVE_SHARE = 16  # of the bytes that are free
_FULL_CODES = {sqlite3.SQLITE_FULL}
_LOG_SHARE = 4  # of the bytes that are kept free
_MOST_LOG_PAGES = 1000  # as SQLite has it
_LOG_BYTES = 256 * 1024  # for one task's transaction, twice: in the log, and to empty it
_GROUP_BYTES = 32 * 2**20  # of the largest group, twice
_BLOCK_BYTES = 512  # of st_blocks


class Disk:
    """The file system of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reserve = folder / "reserve"
        self._was_full = False
        self._is_whole = False  # the reserve
        self._kept_times = 1  # so much is to be free beside it
        self.renew_reserve()
        if not self._is_whole:
            self.hold_half()

    def _free(self) -> tuple[int, int]:
        """Bytes that are free, and those of the whole file system."""
        found = os.statvfs(self._folder)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def log_pages(self, page_bytes: int) -> int:
        """The most pages that the log of a database has before they go into the database, which
        takes as many bytes again: so few that what is kept free suffices for it."""
        kept = _kept_free(self._free()[1])
        return max(1, min(_MOST_LOG_PAGES, kept // _LOG_SHARE // page_bytes))

    @property
    def is_short(self) -> bool:
        """True while new tasks are refused or the next group may bring that about, or less is in
        reserve than should be."""
        free, total = self._free()
        return free < _kept_free(total) + _GROUP_BYTES or not self._is_whole

    def growth(self) -> int:
        """Bytes that what is kept may take in addition, so that enough is left for the log."""
        free, _ = self._free()
        return max(0, free + self._held() - _LOG_BYTES)

    def _held(self) -> int:
        """Bytes of the reserve."""
        try:
            return self._reserve.stat().st_blocks * _BLOCK_BYTES
        except FileNotFoundError:
            return 0

    def has_room(self) -> bool:
        """True while new tasks may be kept."""
        free, total = self._free()
        is_full = free < _kept_free(total)
        if is_full != self._was_full:
            self._was_full = is_full
            if is_full:
                _LOG.error("the disk of %s is full: new tasks are refused", self._folder)
            else:
                _LOG.info("the disk of %s has room again", self._folder)
        return not is_full

    def error_of(self, exc: BaseException) -> BaseException:
        """The store's error for one of the database or of a file; others stay what they are."""
        if isinstance(exc, OSError) and exc.errno in (errno.ENOSPC, errno.EDQUOT):
            full = True
        elif isinstance(exc, sqlite3.Error):
            full = getattr(exc, "sqlite_errorcode", 0) in _FULL_CODES or self._free()[0] < 2**20
        elif isinstance(exc, OSError):
            return StoreAway(f"the files of the tasks cannot be used: {exc}")
        else:
            return exc
        if not full:
            return StoreAway(f"the database of the tasks cannot be used: {exc}")
        return StoreFull(f"the disk of the tasks is full: {exc}")

    def give_up_reserve(self) -> None:
        """Free the bytes of the reserve."""
        if self._is_whole:
            _LOG.warning("the disk of %s is full: the reserve is given up", self._folder)
        self._is_whole = False
        self._kept_times = 2  # else a disk that is just full would be full again at once
        with contextlib.suppress(FileNotFoundError):
            self._reserve.unlink()

    def hold_half(self) -> None:
        """Hold half of the bytes that are free in reserve, after it was given up."""
        self._lay_in(min(_RESERVE_BYTES, self._free()[0] // 2))

    def renew_reserve(self) -> None:
        """Lay in the whole reserve again, once there is room for it."""
        if self._is_whole:
            return
        free, total = self._free()
        free += self._held()
        size = min(_RESERVE_BYTES, free // _RESERVE_SHARE)
        if free - size >= self._kept_times * _kept_free(total) and size:
            self._is_whole = self._lay_in(size)

    def _lay_in(self, size: int) -> bool:
        """Make the reserve a file of so many bytes; False if there is no room for them."""
        with contextlib.suppress(FileNotFoundError):
            self._reserve.unlink()
        if not size:
            return False
        fd = os.open(self._reserve, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError:
            self._reserve.unlink()
            return False
        finally:
            os.close(fd)
        return True


def _kept_free(total: int) -> int:
    """The bytes of a disk of so many that new tasks leave free."""
    return min(_KEPT_FREE_BYTES, total // _KEPT_FREE_SHARE)
