"""Which requests are in a sample: by name, so that all who know the name agree, else by count."""

from __future__ import annotations

from zlib import crc32


class TraceSample:
    """A share, 0 to 1, of all requests."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._below = share * 2**32
        self._due = 0.0

    def has(self, name: bytes) -> bool:
        """Whether the request of this name is in it.

        b"": it has none. Of such requests it takes the share exactly, the last of the first few.
        """
        if name:
            return crc32(name) < self._below
        self._due += self._share
        if self._due < 1:
            return False
        self._due -= 1
        return True
