"""The free runs of an arena: first fit by address, and neighbours joined when they are freed."""

from __future__ import annotations

from bisect import bisect_left


class FreeRuns:
    """The free bytes of an arena as runs, in the order of their places; no two of them touch."""

    __slots__ = ("_places", "_sizes")

    def __init__(self, nbytes: int) -> None:
        self._places = [0] if nbytes else []
        self._sizes = [nbytes] if nbytes else []

    @property
    def largest(self) -> int:
        """The size of the largest run; 0 if nothing is free."""
        return max(self._sizes, default=0)

    def take(self, size: int, keep: int = 0) -> int:
        """The place of `size` bytes (at least 1), taken from the first run that has them; else -1.

        keep: a run of so many bytes stays free, if there is one.
        """
        sizes = self._sizes
        for i, room in enumerate(sizes):
            if room < size or (keep and self._breaks_last(i, size, keep)):
                continue
            place = self._places[i]
            if room == size:
                del self._places[i], sizes[i]
            else:
                self._places[i] = place + size
                sizes[i] = room - size
            return place
        return -1

    def _breaks_last(self, i: int, size: int, keep: int) -> bool:
        """True if run i is the only one of `keep` bytes, and would have fewer without `size`."""
        room = self._sizes[i]
        if room < keep or room - size >= keep:
            return False
        return not any(other >= keep for k, other in enumerate(self._sizes) if k != i)

    def give_back(self, place: int, size: int) -> None:
        """Free the bytes that `take` gave."""
        places, sizes = self._places, self._sizes
        i = bisect_left(places, place)
        assert i == len(places) or place + size <= places[i], f"{place} is given back twice"
        assert i == 0 or places[i - 1] + sizes[i - 1] <= place, f"{place} is given back twice"
        if i < len(places) and place + size == places[i]:
            places[i] = place
            sizes[i] += size
        else:
            places.insert(i, place)
            sizes.insert(i, size)
        if i and places[i - 1] + sizes[i - 1] == place:
            sizes[i - 1] += sizes[i]
            del places[i], sizes[i]
