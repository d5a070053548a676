"""The outages of models: how long a model takes requests while none of its workers serves.

A worker that ends after useful work is back in about the time that its last start took, and rows
wait for it in their rings. So the model takes requests for a time after its last worker went away:
twice the longest recent start and `_MARGIN_NS`. After that it is not ready until a worker serves.
Where a start takes longer than the model's request_timeout_s, it is not ready at first either,
since what is taken so early would be late when the worker is back:

    last worker ends                    expected back                  given up
        |---------- longest start ------------|                            |
        |------------- twice the longest start and the margin -------------|
              |-- request_timeout_s ----------|
              |----------------- requests are taken -----------------------|

The time counts from the end of the last useful worker. One that comes back and ends again before
it has finished a good batch, over and over, does not begin it anew.
"""

from __future__ import annotations

_MARGIN_NS = 2_000_000_000  # a start that fails once is tried again after half a second
_STARTS = 2
_NEVER_NS = 1 << 62


class Outages:
    """The outages of all models, by entry. Times are CLOCK_MONOTONIC in ns."""

    def __init__(self) -> None:
        self._since_ns: dict[int, int] = {}
        self._serving_since_ns: dict[int, int] = {}
        self._start_ns: dict[int, int] = {}
        self._change_ns: dict[int, int] = {}

    def started(self, entry: int, took_ns: int) -> None:
        """A worker of this model is warm, took_ns after its process was started."""
        self._start_ns[entry] = max(took_ns, self._start_ns.get(entry, 0) * 3 // 4)

    def ended(self, entry: int, now_ns: int) -> None:
        """A worker of this model that had done useful work has ended."""
        self._since_ns[entry] = now_ns

    def is_open(self, entry: int) -> bool:
        """True from the end of the model's last useful worker until another one has done useful
        work, or has served for as long as requests would have waited for it."""
        return entry in self._since_ns

    def accepts(
        self, entry: int, *, serving: bool, useful: bool, timeout_ns: int, now_ns: int
    ) -> bool:
        """True if the model takes requests now.

        serving: a warm worker serves it. useful: one of those has finished a good batch.
        timeout_ns: the model's request_timeout_s. False for a model that was never served.
        """
        self._change_ns.pop(entry, None)
        start_ns = self._start_ns.get(entry, 0)
        wait_ns = _STARTS * start_ns + _MARGIN_NS
        if serving:
            since_ns = self._serving_since_ns.setdefault(entry, now_ns)
            if useful or now_ns - since_ns >= wait_ns:
                self._since_ns.pop(entry, None)
            return True
        if self._serving_since_ns.pop(entry, None) is not None:
            self._since_ns.setdefault(entry, now_ns)
        if entry not in self._since_ns:
            return False
        from_ns = self._since_ns[entry] + start_ns - timeout_ns
        until_ns = self._since_ns[entry] + wait_ns
        if now_ns < until_ns:
            self._change_ns[entry] = from_ns if now_ns < from_ns else until_ns
        return from_ns <= now_ns < until_ns

    def forget(self, entry: int) -> None:
        """The model has no workers any more."""
        for by_entry in (self._since_ns, self._serving_since_ns, self._start_ns, self._change_ns):
            by_entry.pop(entry, None)

    def next_ns(self) -> int:
        """When the next of the models without a worker begins or stops to take requests."""
        return min(self._change_ns.values(), default=_NEVER_NS)
