"""The room for files: how many, and how many bytes, all callers and each of them may have kept.

One caller has at most half of both, so that it can neither fill the disk nor shut the others out.
"""

from __future__ import annotations

from collections import Counter

from batchpool.batches.settings import BatchSettings
from batchpool.core.errors import StorageFull

_RETRY_AFTER_MS = 60_000
_ADVICE = "delete files that are not needed, or wait until older ones expire"


class Quotas:
    """The room that is taken: `bytes` and `files` of all callers, also of what is under way."""

    def __init__(self, settings: BatchSettings) -> None:
        self._settings = settings
        self._bytes: Counter[str] = Counter()
        self._files: Counter[str] = Counter()
        self.bytes = 0
        self.files = 0

    def add(self, caller: str, n_bytes: int, files: int = 0) -> None:
        """Count more of a caller's; fewer where a number is negative."""
        self.bytes += n_bytes
        self.files += files
        self._bytes[caller] += n_bytes
        self._files[caller] += files
        if not self._bytes[caller] and not self._files[caller]:
            del self._bytes[caller], self._files[caller]

    def lack(self, caller: str, n_bytes: int, files: int = 0) -> str:
        """The reason why so many more of a caller's cannot be kept, "" for none."""
        limits = self._settings
        for name, more, all_now, now, most, unit in (
            ("files_max_mib", n_bytes, self.bytes, self._bytes[caller], limits.bytes, "bytes"),
            ("files_max", files, self.files, self._files[caller], limits.files, "files"),
        ):
            if not more:
                continue
            if all_now + more > most:
                return f"the files of all callers have {all_now} of {most} {unit} ({name})"
            if now + more > max(1, most // 2):
                return (
                    f"this caller's files have {now} {unit}, and may have {max(1, most // 2)}, half"
                    f" of what is kept for all ({name})"
                )
        return ""

    def check(self, caller: str, n_bytes: int, files: int = 0) -> None:
        """Raise StorageFull where so many more of a caller's cannot be kept."""
        if lack := self.lack(caller, n_bytes, files):
            raise StorageFull(f"{lack}: {_ADVICE}", _RETRY_AFTER_MS)
