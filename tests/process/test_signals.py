"""An exception out of a signal handler may strike a call anywhere: the client works on, and no slot
is lost."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import batchpool as bp
from tests.process.pool_under_test import PATIENCE_S, Pool, until


class Struck(BaseException):
    """Raised by the handler of SIGALRM in these tests."""


@pytest.fixture
def alarm() -> Iterator[None]:
    def strike(number: int, frame: Any) -> None:
        raise Struck

    before = signal.signal(signal.SIGALRM, strike)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def call(client: bp.Client, tag: int) -> None:
    assert client.infer("probe", tag=[tag], seconds=[0.0])["tag"].tolist() == [tag]


# A call that is struck before its coroutine has begun leaves one that Python warns of.
@pytest.mark.filterwarnings("ignore:coroutine 'infer' was never awaited:RuntimeWarning")
@pytest.mark.usefixtures("alarm")
def test_a_client_that_is_struck_anywhere_works_on_and_loses_no_slot(everyday: Pool) -> None:
    places = random.Random(7)
    struck = 0
    with everyday.client() as client:
        call(client, 0)
        for tag in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, places.uniform(20e-6, 3e-3))
                call(client, tag)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Struck:
                struck += 1
            call(client, tag)
        assert struck > 20
        until(lambda: everyday.claimed() == 0, "the return of all slots")
        # Another thread gets the lock.
        thread = threading.Thread(target=call, args=(client, 1))
        thread.start()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
