"""Advice behind errors of the server's library."""

from __future__ import annotations

import pytest

from batchpool.tasks.redis_address import StoreAddress
from batchpool.tasks.redis_clients import redis
from batchpool.tasks.redis_hints import advice

PLAIN, TLS = StoreAddress("redis://h"), StoreAddress("rediss://h")
ERRORS = redis.exceptions


@pytest.mark.parametrize(
    ("exc", "address", "said"),
    [
        (ERRORS.AuthenticationError("Authentication required."), PLAIN, "password"),
        (ERRORS.NoPermissionError("this user"), PLAIN, "rights"),
        (ERRORS.ResponseError("NOPERM User x"), PLAIN, "rights"),
        (ERRORS.InvalidResponse("Protocol error"), PLAIN, "another protocol"),
        (ERRORS.ConnectionError('Protocol error, got "H"'), PLAIN, "another protocol"),
        (ERRORS.TimeoutError("Timeout connecting to server"), TLS, "does the server speak it"),
        (ERRORS.ConnectionError("Connection closed by server."), PLAIN, "may speak TLS"),
    ],
)
def test_what_may_be_behind_it_is_said(exc: Exception, address: StoreAddress, said: str) -> None:
    assert said in advice(exc, address)


@pytest.mark.parametrize(
    ("exc", "address"),
    [
        (ERRORS.TimeoutError("Timeout reading from socket"), TLS),
        (ERRORS.TimeoutError("Timeout connecting to server"), PLAIN),
        (ERRORS.ConnectionError("Error 111 connecting to h:6379. Connection refused."), PLAIN),
        (ERRORS.ResponseError("DB index is out of range"), PLAIN),
        (OSError("no route"), PLAIN),
    ],
)
def test_an_error_that_speaks_for_itself_gets_none(exc: Exception, address: StoreAddress) -> None:
    assert advice(exc, address) == ""
