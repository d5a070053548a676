"""Every error a caller can meet: one class each, with its code and its HTTP status.

Nobody else types a status number or an error code. An error that travels through
shared memory does so as a `Status` number in the slot's `status` word plus a short
text; `error_for` turns the pair back into the exception. The README's table is made from the
classes below.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar


class PoolError(Exception):
    """The parent of all; `status` is the HTTP status, `code` the stable word for programs.

    facts: of a row that failed, its slot and sequence, and the batch, worker and worker's pid it
    failed in: what the logs call them by.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"
    facts: Mapping[str, int] = MappingProxyType({})

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
    """Malformed, wrong dtype, shape or name, undeclared parameter."""

    status, code = 400, "invalid_request"


class NotFound(PoolError, LookupError):
    """No such model, version or path."""

    status, code = 404, "not_found"


class MethodNotAllowed(PoolError):
    """Wrong verb for this path."""

    status, code = 405, "method_not_allowed"

    def __init__(self, message: str, allowed: str = "") -> None:
        super().__init__(message)
        self.allowed = allowed

    def headers(self) -> dict[str, str]:
        return {"Allow": self.allowed} if self.allowed else {}


class RequestTimeout(PoolError, TimeoutError):
    """The request was not complete in time, or nothing more came of it."""

    status, code = 408, "request_timeout"


class TooLarge(PoolError, ValueError):
    """Can never fit: the body, a row, or more rows than a lane holds."""

    status, code = 413, "too_large"


class UnsupportedMediaType(PoolError):
    """Unknown content type or encoding."""

    status, code = 415, "unsupported_media"


class ModelError(PoolError):
    """The model raised, or answered what it did not declare."""

    status, code = 500, "model_error"


class WorkerLost(PoolError):
    """The worker died with this row, on every attempt."""

    status, code = 500, "worker_lost"


class InternalError(PoolError):
    """A fault of ours; the log has the details."""

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
    """The lane is above its watermark, the caller above its share of it while others are active,
    or the queue too long to answer in time; come back after Retry-After."""

    code = "overloaded"


class Draining(Retryable):
    """The pool takes no new requests: it is drained, or shutting down."""

    code = "draining"


class NotReady(Retryable):
    """No worker can serve this model now."""

    code = "not_ready"


class Moved(NotReady):
    """The model has another lane now: clients send there again, and nobody else meets this."""


class PoolStopped(Retryable, ConnectionError):
    """The pool went away with the request."""

    code = "pool_stopped"


class DeadlineExceeded(PoolError, TimeoutError):
    """The request's time was up before it was answered."""

    status, code = 504, "deadline_exceeded"


class Cancelled(PoolError):
    """The caller took the request back."""

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
    OVERLOADED = 7
    NOT_READY = 8


_BY_STATUS: dict[int, type[PoolError]] = {
    Status.MODEL_ERROR: ModelError,
    Status.WORKER_LOST: WorkerLost,
    Status.DEADLINE: DeadlineExceeded,
    Status.CANCELLED: Cancelled,
    Status.DRAINING: Draining,
    Status.INTERNAL: InternalError,
    Status.OVERLOADED: Overloaded,
    Status.NOT_READY: NotReady,
}

_DEFAULT_TEXT: dict[int, str] = {
    Status.MODEL_ERROR: "the model failed for this row",
    Status.WORKER_LOST: "the worker died while it ran this row, on every attempt",
    Status.DEADLINE: "the request's deadline passed before it was run",
    Status.CANCELLED: "the request was cancelled before it was run",
    Status.DRAINING: "the pool takes no new requests; this one was not run",
    Status.INTERNAL: "internal error; the server's log has the details",
    Status.OVERLOADED: "the request could not be answered in time; come back after Retry-After",
    Status.NOT_READY: "the model was replaced before this row was run; send it again",
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


def all_errors() -> list[type[PoolError]]:
    """Every class that stands for an answer, by HTTP status and code."""
    kinds: list[type[PoolError]] = []
    open_kinds = [PoolError]
    while open_kinds:
        kind = open_kinds.pop()
        open_kinds += kind.__subclasses__()
        if kind not in (PoolError, Retryable, Moved):
            kinds.append(kind)
    return sorted(set(kinds), key=lambda kind: (kind.status, kind.code))
