"""Threads that ask a pool all the time, until a test has seen enough or one of them failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from tests.process.pool_under_test import PATIENCE_S, until

PAUSE_S = 0.002  # without it they would take every processor, also from other tests


class Callers:
    """Runs `calls`, each with its number and in a thread of its own, for the time of a `with`.

    A call goes on until `_stop` is set and counts its answers. counts: of each caller. failures:
    whatever was not a right answer. enough: answers that `await_more` waits for by itself.
    """

    enough = 5

    def __init__(self, calls: Sequence[Callable[[int], None]]) -> None:
        self._stop = threading.Event()
        self.counts = [0] * len(calls)
        self.failures: list[str] = []
        self._threads = [
            threading.Thread(target=self._run, args=(i, call)) for i, call in enumerate(calls)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        self.await_more()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def count(self, number: int) -> None:
        """Count an answer of a caller, which pauses then."""
        self.counts[number] += 1
        time.sleep(PAUSE_S)

    def await_more(self, more: int = 0) -> None:
        """Until every caller has so many answers more, or something failed."""
        enough = [count + (more or self.enough) for count in self.counts]
        until(
            lambda: (
                self.failures
                or all(n >= least for n, least in zip(self.counts, enough, strict=True))
            ),
            "more answers",
        )
        assert self.failures == []

    def _run(self, number: int, call: Callable[[int], None]) -> None:
        try:
            call(number)
        except Exception as exc:
            self.failures.append(f"caller {number}: {exc!r}")
