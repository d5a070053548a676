"""Every error a caller can meet: one class each, with its code and its HTTP status.

Nobody else types a status number or an error code. An error that travels through
shared memory does so as a `Status` number in the slot's `status` word plus a short
text; `error_for` turns the pair back into the exception.

    class                 status  code                 says
    InvalidRequest        400     invalid_request      malformed, wrong dtype, shape or name
    NotFound              404     not_found            no such model or path
    MethodNotAllowed      405     method_not_allowed   wrong verb
    TooLarge              413     too_large            can never fit: body, row or number of rows
    UnsupportedMediaType  415     unsupported_media    unknown content type or encoding
    ModelError            500     model_error          the model raised, or answered wrongly
    WorkerLost            500     worker_lost          the worker died with it, every attempt
    InternalError         500     internal             a fault of ours; details are in the log
    Overloaded            503     overloaded           the lane is above its watermark
    Draining              503     draining             the pool is shutting down
    NotReady              503     not_ready            no worker can serve this model now
    PoolStopped           503     pool_stopped         the pool went away with the request
    DeadlineExceeded      504     deadline_exceeded    the request's time was up
    Cancelled             499     cancelled            the caller took the request back
"""

from __future__ import annotations

import enum
import math
from typing import ClassVar


class PoolError(Exception):
    """The parent of all; `status` is the HTTP status, `code` the stable word for programs."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def body(self) -> dict[str, object]:
        """The JSON object of a non-200 answer."""
        return {"error": self.message, "code": self.code}

    def headers(self) -> dict[str, str]:
        """Extra HTTP headers of the answer."""
        return {}


class InvalidRequest(PoolError, ValueError):
    status, code = 400, "invalid_request"


class NotFound(PoolError, LookupError):
    status, code = 404, "not_found"


class MethodNotAllowed(PoolError):
    status, code = 405, "method_not_allowed"

    def __init__(self, message: str, allowed: str = "") -> None:
        super().__init__(message)
        self.allowed = allowed

    def headers(self) -> dict[str, str]:
        return {"Allow": self.allowed} if self.allowed else {}


class TooLarge(PoolError, ValueError):
    status, code = 413, "too_large"


class UnsupportedMediaType(PoolError):
    status, code = 415, "unsupported_media"


class ModelError(PoolError):
    status, code = 500, "model_error"


class WorkerLost(PoolError):
    status, code = 500, "worker_lost"


class InternalError(PoolError):
    status, code = 500, "internal"


class Retryable(PoolError):
    """A refusal that says when to come back: `retry_after_ms`, and whole seconds in the header."""

    status = 503

    def __init__(self, message: str, retry_after_ms: int = 1000) -> None:
        super().__init__(message)
        self.retry_after_ms = max(1, retry_after_ms)

    def body(self) -> dict[str, object]:
        return {**super().body(), "retry_after_ms": self.retry_after_ms}

    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(max(1, math.ceil(self.retry_after_ms / 1000)))}


class Overloaded(Retryable):
    code = "overloaded"


class Draining(Retryable):
    code = "draining"


class NotReady(Retryable):
    code = "not_ready"


class PoolStopped(Retryable, ConnectionError):
    code = "pool_stopped"


class DeadlineExceeded(PoolError, TimeoutError):
    status, code = 504, "deadline_exceeded"


class Cancelled(PoolError):
    status, code = 499, "cancelled"


class Status(enum.IntEnum):
    """The slot's `status` word: how its row ended."""

    OK = 0
    MODEL_ERROR = 1
    WORKER_LOST = 2
    DEADLINE = 3
    CANCELLED = 4
    DRAINING = 5
    INTERNAL = 6


_BY_STATUS: dict[int, type[PoolError]] = {
    Status.MODEL_ERROR: ModelError,
    Status.WORKER_LOST: WorkerLost,
    Status.DEADLINE: DeadlineExceeded,
    Status.CANCELLED: Cancelled,
    Status.DRAINING: Draining,
    Status.INTERNAL: InternalError,
}

_DEFAULT_TEXT: dict[int, str] = {
    Status.MODEL_ERROR: "the model failed for this row",
    Status.WORKER_LOST: "the worker died while it ran this row, on every attempt",
    Status.DEADLINE: "the request's deadline passed before it was run",
    Status.CANCELLED: "the request was cancelled before it was run",
    Status.DRAINING: "the pool is shutting down; the request was not run",
    Status.INTERNAL: "internal error; the server's log has the details",
}


def error_for(status: int, text: str = "") -> PoolError:
    """The exception for a slot's status word (not OK) and its text (may be empty)."""
    kind = _BY_STATUS.get(status)
    if kind is None:
        return InternalError(f"unknown row status {status}")
    return kind(text or _DEFAULT_TEXT[status])


class ConfigError(Exception):
    """A configuration that cannot work; the text is one clear line for the operator."""


class StartError(Exception):
    """The pool could not start (port taken, memory too small, a model that cannot load)."""
