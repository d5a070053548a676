"""The check of a model whose batches fail one after another: is it broken, or are its rows bad?

A caller may send rows that no model can run, as many as it likes, and that must not take the model
from the others. So failed batches alone restart no worker: from the second in a row on, the
worker runs the warm-up row, which the model has accepted before. If that fails too, the model is
broken, and the worker ends before the failed batch is published: its rows run again in a new one.
"""

from __future__ import annotations

from collections.abc import Callable

from batchpool.worker.backends.backend import describe_error
from batchpool.worker.device_errors import MustRestart

_RESTS = 9  # so many times the duration of a check pass before the next one


class ModelCheck:
    """Counts failures in a row and runs the warm-up row when they may be the model's fault.

    run_warm_up_row: raises what the model raises. The checks take at most a tenth of the time:
    where the warm-up row takes long, failing rows would cost others more than themselves.
    """

    def __init__(self, run_warm_up_row: Callable[[], None], clock_ns: Callable[[], int]) -> None:
        self._run_warm_up_row = run_warm_up_row
        self._clock_ns = clock_ns
        self._not_before_ns = 0
        self.failures = 0  # failed batches since the last proof that the model works

    def passed(self) -> None:
        """A batch gave outputs: the model works."""
        self.failures = 0

    def failed(self) -> None:
        """A batch failed; no other one is in flight, except where it is the first to fail.

        MustRestart if the model fails for its warm-up row too.
        """
        self.failures += 1
        began_ns = self._clock_ns()
        if self.failures < 2 or began_ns < self._not_before_ns:
            return
        try:
            self._run_warm_up_row()
        except (Exception, SystemExit) as exc:
            text = describe_error(exc)
            raise MustRestart(
                f"{self.failures} batches failed in a row, and the warm-up row too: {text}"
            ) from exc
        ended_ns = self._clock_ns()
        self._not_before_ns = ended_ns + _RESTS * (ended_ns - began_ns)
        self.failures = 0
