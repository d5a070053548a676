"""Shares of the supervisor's time for the requests of each user.

The supervisor has one thread, which also restarts processes and answers operators. The requests of
each user together get a fifth of its time; a user who asks for more is left unread for a while.
Nothing here reads a clock.
"""

from __future__ import annotations

_SHARE = 5  # one part of work in five parts of time
_BURST_NS = 2_000_000_000  # that may be owed: 0.5 s of work at once


class TimeShares:
    """The accounts of all users, by uid."""

    def __init__(self) -> None:
        self._rested_at_ns: dict[int, int] = {}

    def spend(self, uid: int, now_ns: int, took_ns: int) -> None:
        """The requests of a user took so long, until now."""
        rested_at_ns = max(now_ns - took_ns, self._rested_at_ns.get(uid, 0))
        self._rested_at_ns[uid] = rested_at_ns + took_ns * _SHARE

    def resume_at_ns(self, uid: int, now_ns: int) -> int:
        """When requests of a user are read again; 0: now."""
        at_ns = self._rested_at_ns.get(uid, 0)
        if at_ns <= now_ns:
            self._rested_at_ns.pop(uid, None)
            return 0
        return at_ns - _BURST_NS if at_ns - now_ns > _BURST_NS else 0
