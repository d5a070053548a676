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
        """So many more rows have ended. share: of the input up to them, where total is None."""
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
        of = ""
        rest: float | None = None
        if self._total is not None:
            of, rest = f" of {self._total:,} rows", self._total - self.rows
        elif share:
            of, rest = f" rows, {share:.0%} of the input", self.rows / share - self.rows
        bad = f", {self.bad:,} bad" if self.bad else ""
        left = f", {_length(rest / rate)} left" if rest is not None and rate > 0 else ""
        done = f"{self.rows:,}{of}" if of else counted(self.rows)
        return f"{done}, {rate:,.0f} rows/s{left}{bad}"

    def tell_there(self, parts: int, folder: str) -> None:
        """Say that a run goes on from where it ended, if it does."""
        if parts:
            there = f"{parts:,} part{'s' * (parts != 1)} with {counted(self.rows)}"
            print(f"going on after {there} in {folder}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def counted(rows: int) -> str:
    """A number of rows in words."""
    return f"{rows:,} row{'s' * (rows != 1)}"


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
