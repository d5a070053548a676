"""Since when the supervisor has been looking at the others without a break.

Whoever was stopped, suspended or starved itself has seen nothing meanwhile and may not judge by
the clock: the others may have been held up by the same. A break gives everybody a new period.
"""

from __future__ import annotations

from collections.abc import Iterable


class LoopGaps:
    """Looks, and the breaks between them.

    look_ns: how often it is going to look. limits_ns: what will be judged by. A break is a time
    without a look that is longer than half the limit, so each limit has breaks of its own; less
    than two times look_ns is none. No clock is read here.
    """

    def __init__(self, look_ns: int, limits_ns: Iterable[int], now_ns: int) -> None:
        self._break_ns = {limit: max(limit // 2, 2 * look_ns) for limit in limits_ns}
        self._since_ns = dict.fromkeys(self._break_ns, now_ns)
        self._looked_ns = now_ns

    def look(self, now_ns: int) -> None:
        """To be called before judging, at least every look_ns."""
        gap_ns = now_ns - self._looked_ns
        self._looked_ns = now_ns
        for limit_ns, break_ns in self._break_ns.items():
            if gap_ns > break_ns:
                self._since_ns[limit_ns] = now_ns

    def watched_ns(self, since_ns: int, limit_ns: int) -> int:
        """How much of the time since then was watched, after the last break for this limit."""
        return self._looked_ns - max(since_ns, self._since_ns[limit_ns])
