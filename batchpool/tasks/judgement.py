"""The verdict on a task that ended with an error: tried again, and when, or a dead letter.

the pool's weather    overloaded, draining, loading, stopped: it comes back when the error says,
                      and no attempt is counted
the caller's fault    what no second attempt can change: it fails at once
another pool's model   of a store that several pools share: one may have the model, or the tensors,
                      that this one has not, as while a new release is rolled out
everything else       an attempt; the next one after 1, 4, 16 ... s
"""

from __future__ import annotations

from dataclasses import dataclass

from batchpool.core.errors import (
    Cancelled,
    Forbidden,
    InvalidRequest,
    NotFound,
    PoolError,
    Retryable,
    TooLarge,
    WorkerLost,
)

# The pool has tried a row several times, the last one alone, before it says that its worker died.
_ATTEMPTS_WITH_A_LOST_WORKER = 2
_HOPELESS = (InvalidRequest, TooLarge, NotFound, Forbidden)
_FIRST_S, _TIMES, _LONGEST_S = 1.0, 4.0, 300.0
_WEATHER_LEAST_S, _WEATHER_MOST_S = 0.2, 10.0
_JITTER = 0.2
LONGEST_MS = int(_LONGEST_S * (1 + _JITTER) * 1000)  # that a task waits for another attempt
# A release is rolled out in so long: models load in load_timeout_s, one box after the other.
_ELSEWHERE_S = 600.0
_ELSEWHERE_LEAST_S, _ELSEWHERE_MOST_S, _ELSEWHERE_PART = 1.0, 60.0, 0.25


class OtherInputs(InvalidRequest):
    """The model has other inputs here than those of a task: to its caller a bad request."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """after_s: the time until it is tried again; None for a task that has failed. counted: an
    attempt was used up. is_weather: other tasks of the model would end in the same way now."""

    after_s: float | None
    counted: bool
    is_weather: bool = False


def judge(
    error: PoolError, attempts: int, most: int, jitter: float, age_s: float | None = None
) -> Verdict:
    """The verdict on a task. attempts: those before this one. most: of all attempts. jitter: from
    -1 to 1, so that tasks that failed together do not come back together. age_s: of a task that
    other pools may run, since its submission; None where there are no others."""
    if isinstance(error, (Retryable, Cancelled)):
        asked_s = error.retry_after_ms / 1000 if isinstance(error, Retryable) else 0.0
        after_s = min(_WEATHER_MOST_S, max(_WEATHER_LEAST_S, asked_s))
        return Verdict(after_s * (1 + _JITTER * jitter), counted=False, is_weather=True)
    is_elsewhere = isinstance(error, (NotFound, OtherInputs))
    if is_elsewhere and age_s is not None and age_s < _ELSEWHERE_S:
        after_s = min(_ELSEWHERE_MOST_S, max(_ELSEWHERE_LEAST_S, _ELSEWHERE_PART * age_s))
        return Verdict(after_s * (1 + _JITTER * jitter), counted=False)
    if isinstance(error, _HOPELESS):
        return Verdict(None, counted=True)
    if isinstance(error, WorkerLost):
        most = min(most, _ATTEMPTS_WITH_A_LOST_WORKER)
    if attempts + 1 >= most:
        return Verdict(None, counted=True)
    after_s = min(_LONGEST_S, _FIRST_S * _TIMES**attempts)
    return Verdict(after_s * (1 + _JITTER * jitter), counted=True)
