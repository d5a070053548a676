"""The batcher's process: heartbeats while its loop turns, not before and not after."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import pytest

from batchpool.batcher.process import BatcherProcess
from batchpool.control.channel import Channel, Closed, close_all, pair
from batchpool.control.edges import FROM_BATCHER
from batchpool.control.process_messages import BatcherRunning, Begin, SetLimits, StartBatcher
from batchpool.core.layout.segments import heartbeats_layout
from batchpool.core.metrics.segments import counters_layout, flight_recorder_layout
from batchpool.shm.doorbell import Doorbell
from batchpool.shm.heartbeat import BATCHER, Heartbeats
from batchpool.shm.segment import create

PATIENCE_S = 60.0


def until(condition: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.001)


def run(process: BatcherProcess, ends: list[str]) -> None:
    try:
        process.run()
    except Closed:
        ends.append("closed")


def start(supervisor: Channel, beat_ns: int) -> Heartbeats:
    """Tell the other end to start; the supervisor's view of the heartbeats."""
    layouts = (heartbeats_layout(2), counters_layout(1), flight_recorder_layout())
    shared, bell = [create(layout, sealed=False) for layout in layouts], Doorbell()
    heartbeats = Heartbeats(shared[0], 2, writable=False)
    message = StartBatcher((), draining=0, max_lanes=2, processes=2, beat_ns=beat_ns)
    supervisor.send(message, [bell.fd, *shared])
    close_all(shared)
    bell.close()
    return heartbeats


@pytest.mark.parametrize("beat_ns", [1_000_000, 250_000_000])
def test_the_batcher_beats_with_nothing_to_do(beat_ns: int) -> None:
    supervisor, own = pair()
    begun_ns = time.monotonic_ns()
    heartbeats = start(supervisor, beat_ns)
    process = BatcherProcess(own)
    assert heartbeats.last_ns(BATCHER, begun_ns) is None, "it only starts"
    ends: list[str] = []
    thread = threading.Thread(target=run, args=(process, ends))
    thread.start()
    supervisor.send(Begin(takeover=False, evicted=()))
    assert supervisor.receive(FROM_BATCHER) == (BatcherRunning(), [])
    stamps = []
    for _ in range(3):
        since_ns = time.monotonic_ns()
        until(lambda: heartbeats.last_ns(BATCHER, since_ns) is not None)  # noqa: B023
        stamps.append(heartbeats.last_ns(BATCHER, since_ns))
    assert stamps == sorted(set(stamps))
    assert all(begun_ns < stamp <= time.monotonic_ns() for stamp in stamps if stamp)
    assert heartbeats.last_ns(1, begun_ns) is None, "the other's word"
    supervisor.close()
    thread.join(PATIENCE_S)
    assert ends == ["closed"]
    own.close()


def test_the_batcher_beats_as_a_reload_has_told_it() -> None:
    supervisor, own = pair()
    heartbeats = start(supervisor, beat_ns=3600 * 10**9)
    process = BatcherProcess(own)
    thread = threading.Thread(target=run, args=(process, []))
    thread.start()
    level = logging.getLogger().level
    supervisor.send(Begin(takeover=False, evicted=()))
    assert supervisor.receive(FROM_BATCHER) == (BatcherRunning(), [])
    supervisor.send(SetLimits((), 1_000_000, "info"))
    for _ in range(3):
        since_ns = time.monotonic_ns()
        until(lambda: heartbeats.last_ns(BATCHER, since_ns) is not None)  # noqa: B023
    supervisor.close()
    thread.join(PATIENCE_S)
    logging.getLogger().setLevel(level)
    own.close()
