"""Error classes: one for every error that a caller can meet, with its code and HTTP status.

No other file spells an error code, or the status number of an error. An error crosses shared
memory as a `Status` number in the slot's `status` word and a short text; `error_for` turns the two
back into the exception. The table in docs/http.md is made from these classes.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

DETAILS_BYTES = 120  # most bytes of an InvalidInput's details as JSON in shared memory


class PoolError(Exception):
    """An error with an HTTP `status` and a stable `code` for programs; the parent of the others.

    facts: identifiers for the log of a failed row: its slot and sequence, and the batch, the
    worker and the worker's pid. row: in a request of several rows the number of the one that ended
    with it, from 0; None in a request of one, and where it is no row's. param: the member of a
    request of OpenAI's API that is at fault, if one is.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"
    facts: Mapping[str, int] = MappingProxyType({})

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.row: int | None = None
        self.param: str | None = None

    def body(self) -> dict[str, object]:
        """The JSON object of the error response."""
        more: dict[str, object] = {} if self.row is None else {"row": self.row}
        return {"error": self.message, "code": self.code, **more}

    def headers(self) -> dict[str, str]:
        """Extra HTTP headers of the error response."""
        return {}


class InvalidRequest(PoolError, ValueError):
    """A malformed request; a wrong dtype, shape or name; an undeclared parameter."""

    status, code = 400, "invalid_request"


class InvalidInput(InvalidRequest):
    """The model refused this input; the text and `details` are the model's."""

    def __init__(self, message: str, details: Mapping[str, Any] | None = None) -> None:
        """Make one to put in the row's place in a list of outputs, for `Batch.fail`, or to raise.

        details: a JSON object for programs, such as {"offset": 17}; it reaches the caller if it
        takes at most DETAILS_BYTES as JSON. TypeError or ValueError if it is no JSON.
        """
        super().__init__(str(message))
        if not (details is None or isinstance(details, Mapping)):
            raise TypeError(f"details is {details!r}; a dict was expected")
        self.details: dict[str, Any] = {} if details is None else dict(details)
        if self.details:
            # At once, so that the line of the model that is wrong raises.
            self.details = json.loads(self.details_json())

    def body(self) -> dict[str, object]:
        more = {"details": self.details} if self.details else {}
        return {**super().body(), **more}

    def details_json(self) -> bytes:
        """The details as compact JSON in ASCII."""
        try:
            text = json.dumps(
                self.details, separators=(",", ":"), allow_nan=False, default=_plain_value
            )
        except (TypeError, ValueError) as exc:
            raise type(exc)(f"the details of an InvalidInput: {exc}") from None
        return text.encode()


class Unauthorized(PoolError):
    """A request without a key of the server, or with one that it does not know."""

    status, code = 401, "unauthorized"

    def __init__(self, message: str, challenges: str = "Bearer") -> None:
        super().__init__(message)
        self.challenges = challenges

    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": self.challenges}


class Forbidden(PoolError):
    """A call that the pool's configuration does not allow, or that a web page of another site makes
    whose origin is not among `cors_origins`."""

    status, code = 403, "forbidden"


class NotFound(PoolError, LookupError):
    """No such model, version or path."""

    status, code = 404, "not_found"


class MethodNotAllowed(PoolError):
    """An HTTP method that this path does not take."""

    status, code = 405, "method_not_allowed"

    def __init__(self, message: str, allowed: str = "") -> None:
        super().__init__(message)
        self.allowed = allowed

    def headers(self) -> dict[str, str]:
        return {"Allow": self.allowed} if self.allowed else {}


class RequestTimeout(PoolError, TimeoutError):
    """The request was not complete in time, or its client stopped sending."""

    status, code = 408, "request_timeout"


def _plain_value(value: Any) -> Any:
    """A number or an array of numpy or torch as JSON's own; TypeError for anything else."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{value!r} is a {type(value).__name__}, which JSON cannot hold")


class TaskCancelled(PoolError):
    """The task was taken back before it was done, so that it has no result."""

    status, code = 409, "task_cancelled"


class Expired(PoolError, LookupError):
    """The task waited longer than `task_max_age_s`, or it ended and its result was kept as long as
    `task_result_ttl_s` says."""

    status, code = 410, "expired"


class TooLarge(PoolError, ValueError):
    """A body, a row or a number of rows that can never fit."""

    status, code = 413, "too_large"


class UnsupportedMediaType(PoolError):
    """An unknown content type or content encoding."""

    status, code = 415, "unsupported_media"


class IdempotencyMismatch(PoolError, ValueError):
    """The Idempotency-Key was used before, by the same caller, for another request."""

    status, code = 422, "idempotency_mismatch"


class ModelError(PoolError):
    """The model raised an exception, or returned outputs that it did not declare."""

    status, code = 500, "model_error"


class WorkerLost(PoolError):
    """The worker died with this row, on every attempt."""

    status, code = 500, "worker_lost"


class InternalError(PoolError):
    """A fault of the server; its log has the details."""

    status, code = 500, "internal"


class NotSupported(PoolError):
    """A call of the protocol that batchpool does not offer; the text says what to do instead."""

    status, code = 501, "not_supported"


class Retryable(PoolError):
    """A refusal with the time after which to retry, also as whole seconds in Retry-After."""

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
    or the queue too long to answer in time; retry after Retry-After."""

    code = "overloaded"


class Draining(Retryable):
    """The pool takes no new requests: it is being drained or shut down."""

    code = "draining"


class NotReady(Retryable):
    """No worker serves this model, nor is one back in time."""

    code = "not_ready"


class Moved(NotReady):
    """The model has another lane now. Clients send there again; callers never meet this."""

    @classmethod
    def replaced(cls, model: str) -> Moved:
        """The error of a claim, or of a request under way, in a lane that a reload replaced."""
        return cls(f"model {model!r} was replaced just now; send it again")


class PoolStopped(Retryable, ConnectionError):
    """The pool stopped before the request was answered."""

    code = "pool_stopped"


class TasksFull(Retryable):
    """The store of tasks holds as many tasks, or bytes, as the configuration allows, or this caller
    has more than half of them while others have some too; retry after Retry-After."""

    code = "tasks_full"


class StorageFull(Retryable):
    """The disk below the store of tasks or files is full, or the files of all callers, or this
    caller's half of them, are as many as the configuration allows, so that nothing new is kept."""

    status, code = 507, "storage_full"


class DeadlineExceeded(PoolError, TimeoutError):
    """The request's deadline passed before it was answered."""

    status, code = 504, "deadline_exceeded"


class Cancelled(PoolError):
    """The caller took the request back."""

    status, code = 499, "cancelled"


# Errors that the model, or the death of its worker, makes of one row.
OF_A_ROW = (InvalidInput, ModelError, WorkerLost)


class Status(enum.IntEnum):
    """The value of a slot's `status` word: the end of its row."""

    OK = 0
    MODEL_ERROR = 1
    WORKER_LOST = 2
    DEADLINE = 3
    CANCELLED = 4
    DRAINING = 5
    INTERNAL = 6
    OVERLOADED = 7
    NOT_READY = 8
    INVALID_INPUT = 9
    TOO_LARGE = 10


_BY_STATUS: dict[int, type[PoolError]] = {
    Status.MODEL_ERROR: ModelError,
    Status.WORKER_LOST: WorkerLost,
    Status.DEADLINE: DeadlineExceeded,
    Status.CANCELLED: Cancelled,
    Status.DRAINING: Draining,
    Status.INTERNAL: InternalError,
    Status.OVERLOADED: Overloaded,
    Status.NOT_READY: NotReady,
    Status.INVALID_INPUT: InvalidInput,
    Status.TOO_LARGE: TooLarge,
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
    Status.INVALID_INPUT: "the model refused this input",
    Status.TOO_LARGE: "the row may take more tokens than a worker can hold",
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
    """Every class that callers can meet, sorted by HTTP status, code and name."""
    kinds: list[type[PoolError]] = []
    found: list[type[PoolError]] = [PoolError]
    while found:
        kind = found.pop()
        found += kind.__subclasses__()
        # A model may have subclasses of its own, which callers never meet.
        if kind.__module__ == __name__ and kind not in (PoolError, Retryable, Moved):
            kinds.append(kind)
    return sorted(set(kinds), key=lambda kind: (kind.status, kind.code, kind.__name__))
