"""The one table of errors: classes, codes, statuses, bodies, headers, and the way back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from batchpool.core.errors import (
    Cancelled,
    DeadlineExceeded,
    Draining,
    Expired,
    Forbidden,
    IdempotencyMismatch,
    InternalError,
    InvalidInput,
    InvalidRequest,
    MethodNotAllowed,
    ModelError,
    Moved,
    NotFound,
    NotReady,
    NotSupported,
    Overloaded,
    PoolError,
    PoolStopped,
    RequestTimeout,
    Retryable,
    Status,
    StorageFull,
    TaskCancelled,
    TasksFull,
    TooLarge,
    Unauthorized,
    UnsupportedMediaType,
    WorkerLost,
    all_errors,
    error_for,
)

TABLE = [
    (InvalidRequest, 400, "invalid_request"),
    (Unauthorized, 401, "unauthorized"),
    (Forbidden, 403, "forbidden"),
    (NotFound, 404, "not_found"),
    (MethodNotAllowed, 405, "method_not_allowed"),
    (RequestTimeout, 408, "request_timeout"),
    (TaskCancelled, 409, "task_cancelled"),
    (Expired, 410, "expired"),
    (TooLarge, 413, "too_large"),
    (IdempotencyMismatch, 422, "idempotency_mismatch"),
    (TasksFull, 503, "tasks_full"),
    (StorageFull, 507, "storage_full"),
    (UnsupportedMediaType, 415, "unsupported_media"),
    (ModelError, 500, "model_error"),
    (WorkerLost, 500, "worker_lost"),
    (InternalError, 500, "internal"),
    (NotSupported, 501, "not_supported"),
    (Overloaded, 503, "overloaded"),
    (Draining, 503, "draining"),
    (NotReady, 503, "not_ready"),
    (PoolStopped, 503, "pool_stopped"),
    (DeadlineExceeded, 504, "deadline_exceeded"),
    (Cancelled, 499, "cancelled"),
]
RETRYABLE = {TasksFull, StorageFull, Overloaded, Draining, NotReady, PoolStopped}


def concrete(kind: type[PoolError]) -> set[type[PoolError]]:
    # Subclasses elsewhere are told apart within a process, and callers never meet them.
    known = [below for below in kind.__subclasses__() if below.__module__ == PoolError.__module__]
    below = [below for below in known if below not in (Moved, InvalidInput)]
    return {kind} if not below else set().union(*map(concrete, below))


def test_the_table_names_every_class_once() -> None:
    assert concrete(PoolError) == {kind for kind, _, _ in TABLE}
    assert len({code for _, _, code in TABLE}) == len(TABLE)
    assert all(kind.__doc__ for kind, _, _ in TABLE), "the README shows them"


def test_what_clients_keep_to_themselves_would_be_not_ready() -> None:
    error = Moved("send it again")
    assert isinstance(error, NotReady)
    assert (error.status, error.code, error.retry_after_ms) == (503, "not_ready", 1000)
    assert Moved not in all_errors()


def test_a_refused_input_is_an_invalid_request_with_the_models_own_words() -> None:
    error = InvalidInput("the text is empty")
    assert isinstance(error, InvalidRequest)
    assert (error.status, error.code, error.details, error.row) == (
        400,
        "invalid_request",
        {},
        None,
    )
    assert error.body() == {"error": "the text is empty", "code": "invalid_request"}
    error = InvalidInput("no UTF-8", {"offset": 3, "why": "é"})
    error.row = 2
    assert error.body() == {
        "error": "no UTF-8",
        "code": "invalid_request",
        "row": 2,
        "details": {"offset": 3, "why": "é"},
    }
    assert error.details_json() == b'{"offset":3,"why":"\\u00e9"}'
    assert InvalidInput in all_errors()


def test_errors_of_a_models_own_are_in_no_table() -> None:
    class TooLoud(InvalidInput):
        pass

    assert TooLoud not in all_errors()
    assert {kind.__module__ for kind in all_errors()} == {"batchpool.core.errors"}


def test_details_may_hold_numbers_of_numpy() -> None:
    error = InvalidInput("no", {"offset": np.int64(3), "at": np.arange(2), "score": np.float32(2)})
    assert error.details == {"offset": 3, "at": [0, 1], "score": 2.0}
    assert error.details_json() == b'{"offset":3,"at":[0,1],"score":2.0}'


@pytest.mark.parametrize(
    ("details", "kind"),
    [({"at": object()}, TypeError), ({"at": float("nan")}, ValueError), (["at"], TypeError)],
)
def test_details_that_are_no_json_fail_where_they_are_given(
    details: dict[str, object], kind: type[Exception]
) -> None:
    with pytest.raises(kind, match="details"):
        InvalidInput("no", details)


@pytest.mark.parametrize(("kind", "status", "code"), TABLE)
def test_each_error(kind: type[PoolError], status: int, code: str) -> None:
    error = kind("input 'x' has shape [1]; [n, 4] was expected")
    assert (error.status, error.code) == (status, code)
    assert str(error) == error.message == "input 'x' has shape [1]; [n, 4] was expected"
    body = {"error": error.message, "code": code}
    if kind in RETRYABLE:
        assert error.body() == {**body, "retry_after_ms": 1000}
        assert error.headers() == {"Retry-After": "1"}
    else:
        assert error.body() == body
        challenge = {"WWW-Authenticate": "Bearer"} if kind is Unauthorized else {}
        assert error.headers() == challenge
    assert json.loads(json.dumps(error.body())) == error.body()


@pytest.mark.parametrize(("kind", "status", "code"), TABLE)
def test_each_error_can_be_raised_and_caught_as_one(
    kind: type[PoolError], status: int, code: str
) -> None:
    with pytest.raises(PoolError, match="gone") as caught:
        raise kind("gone")
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (InvalidRequest, ValueError),
        (TooLarge, ValueError),
        (NotFound, LookupError),
        (PoolStopped, ConnectionError),
        (DeadlineExceeded, TimeoutError),
    ],
)
def test_callers_may_catch_the_builtin_kind(kind: type[PoolError], builtin: type) -> None:
    assert isinstance(kind("text"), builtin)


@pytest.mark.parametrize("kind", sorted(RETRYABLE, key=lambda k: k.code))
@pytest.mark.parametrize(
    ("retry_after_ms", "body_ms", "header"),
    [
        (-5, 1, "1"),
        (0, 1, "1"),
        (1, 1, "1"),
        (999, 999, "1"),
        (1000, 1000, "1"),
        (1001, 1001, "2"),
        (1999, 1999, "2"),
        (2000, 2000, "2"),
        (60_000, 60_000, "60"),
    ],
)
def test_retry_after_is_whole_seconds_rounded_up_and_exact_in_the_body(
    kind: type[Retryable], retry_after_ms: int, body_ms: int, header: str
) -> None:
    error = kind("later", retry_after_ms)
    assert error.body()["retry_after_ms"] == body_ms
    assert error.headers() == {"Retry-After": header}


def test_method_not_allowed_names_the_verbs() -> None:
    assert MethodNotAllowed("GET is not allowed", "POST").headers() == {"Allow": "POST"}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status.MODEL_ERROR, ModelError),
        (Status.WORKER_LOST, WorkerLost),
        (Status.DEADLINE, DeadlineExceeded),
        (Status.CANCELLED, Cancelled),
        (Status.DRAINING, Draining),
        (Status.INTERNAL, InternalError),
        (Status.OVERLOADED, Overloaded),
        (Status.NOT_READY, NotReady),
        (Status.INVALID_INPUT, InvalidInput),
        (Status.TOO_LARGE, TooLarge),
    ],
)
def test_a_status_word_comes_back_as_its_error(status: Status, kind: type[PoolError]) -> None:
    plain = error_for(status)
    assert type(plain) is kind
    assert plain.message
    worded = error_for(int(status), "ValueError: row 3 is odd")
    assert type(worded) is kind
    assert worded.message == "ValueError: row 3 is odd"


def test_every_status_but_ok_has_an_error() -> None:
    unknown = [s for s in Status if error_for(s).message.startswith("unknown")]
    assert unknown == [Status.OK]
    assert Status.OK == 0, "fresh, zeroed memory is no failure"


@pytest.mark.parametrize("status", [11, 255, 2**32 - 1])
def test_a_status_word_nobody_wrote_is_an_internal_error(status: int) -> None:
    error = error_for(status, "text that may be garbage")
    assert type(error) is InternalError
    assert str(status) in error.message
