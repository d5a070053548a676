"""Progress of a run on stderr: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

_LINE_S = 10.0


class Progress:
    """Tells how far a run is. total: rows of the whole input; None if unknown. before: rows of
    parts that were there already."""

    def __init__(self, total: int | None, before: int, *, clock: Any = time.monotonic) -> None:
        self.rows, self.bad = before, 0
        self._total = total
        self._before = before
        self._clock = clock
        self._began_s = self._told_s = clock()
        self._bar = _bar(total, before)

    def add(self, rows: int, bad: int, share: float | None = None) -> None:
        """So many more rows have ended. share: of the input that was read, where total is None."""
        self.rows += rows
        self.bad += bad
        if self._bar is not None:
            if bad:
                self._bar.set_postfix(bad=self.bad, refresh=False)
            self._bar.update(rows)
        elif self._clock() - self._told_s >= _LINE_S:
            self._told_s = self._clock()
            print(self.line(share), file=sys.stderr, flush=True)

    def rate(self) -> float:
        """Rows a second of this run, without those that were there."""
        passed_s = self._clock() - self._began_s
        return (self.rows - self._before) / passed_s if passed_s > 0 else 0.0

    def line(self, share: float | None = None) -> str:
        """The state in a line."""
        rate = self.rate()
        of, left = "", ""
        if self._total is not None:
            of = f" of {self._total:,}"
            if rate > 0:
                left = f", {_length((self._total - self.rows) / rate)} left"
        elif share:
            of = f" ({share:.0%} of the input)"
            left = f", {_length((self._clock() - self._began_s) * (1 - share) / share)} left"
        bad = f", {self.bad:,} bad" if self.bad else ""
        return f"{self.rows:,}{of} rows, {rate:,.0f} rows/s{left}{bad}"

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _bar(total: int | None, before: int) -> Any:
    if not (sys.stderr is not None and sys.stderr.isatty()):
        return None
    try:
        from tqdm import tqdm
    except ImportError:  # a line every ten seconds does as well
        return None
    return tqdm(total=total, initial=before, unit=" rows", unit_scale=True, dynamic_ncols=True)


def _length(seconds: float) -> str:
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
