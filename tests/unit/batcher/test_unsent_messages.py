"""A supervisor that is held up, and reads no message, does not end the batcher."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from batchpool.control.messages import Message
from batchpool.control.process_messages import CloseLane, LaneClosed
from batchpool.process import bootstrap
from tests.unit.batcher.process_bench import PATIENCE_S, Supervisor


def test_what_cannot_be_sent_waits_until_the_supervisor_reads_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bootstrap, "settle", lambda: None)
    supervisor = Supervisor()
    refused = threading.Event()

    def full(message: Message, fds: Sequence[int] = ()) -> None:
        refused.set()
        raise BlockingIOError

    try:
        supervisor.begin()
        supervisor.settle()
        with monkeypatch.context() as patch:
            patch.setattr(supervisor.process._channel, "send", full)
            for number in (5, 6, 7):
                supervisor.send(CloseLane(number))
            assert refused.wait(PATIENCE_S)
        supervisor.expect(*(LaneClosed(number) for number in (5, 6, 7)))
        supervisor.settle()
    finally:
        supervisor.end()
