"""A local client that keeps every descriptor it is given and writes where it likes."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import time
from typing import Any

import numpy as np

from batchpool.client.arena_lane_client import lane_client_of
from batchpool.client.connection import Connection
from batchpool.client.pending_request import PendingRequest
from batchpool.client.pool_facts import ModelFacts
from batchpool.control.channel import Channel
from batchpool.control.messages import Attach, Attached, LaneOpened, OpenLane
from batchpool.core.layout.segments import VERSION, lane_layout
from batchpool.core.layout.states import LaneGate
from batchpool.core.tensors.rows import check_rows
from batchpool.core.tensors.spec import ModelSpec
from batchpool.shm.lane import Lane
from batchpool.shm.segment import map_checked

DEADLINE_NS = 5 * 10**9


def connected(path: str) -> Connection:
    """A connection to the control socket that has not attached."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(path)
    return Connection(Channel(sock), path)


class Intruder:
    """An attached client with a lane to one model. Every descriptor is an attribute: state_page_fd,
    wake_fd (it rings), bell_fd (it hears), lane_fd."""

    def __init__(self, path: str, model: str) -> None:
        self.connection = connected(path)
        _reply, fds = self.connection.ask_for_fds(Attach(VERSION), Attached)
        self.state_page_fd, self.wake_fd, self.bell_fd = fds
        opened, lane_fds = self.connection.ask_for_fds(OpenLane(model), LaneOpened)
        (self.lane_fd,) = lane_fds
        spec = ModelFacts.of(opened.facts).spec
        self.layout = lane_layout(spec, opened.slots)
        segment = map_checked(self.lane_fd, self.layout)
        self.memory: mmap.mmap = segment.map
        self.lane_client = lane_client_of(Lane(spec, segment, self.layout))
        self.rows = check_rows(spec, example_rows(spec), None)
        until_s = time.monotonic() + 5
        while self.lane_client.lane.gate.get() == LaneGate.CLOSED and time.monotonic() < until_s:
            time.sleep(0.001)

    def ring(self) -> None:
        """Wake the batcher."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self.wake_fd, 1)

    def submit(self, n: int = 1) -> list[PendingRequest]:
        """Submit n rows, or as many as there is room for, and ring."""
        now_ns = time.monotonic_ns()
        sent = []
        for _ in range(n):
            if not self.lane_client.may_claim(1, 0):
                break
            sent.append(self.lane_client.submit(self.rows, now_ns, now_ns + DEADLINE_NS))
        self.lane_client.flush()
        self.ring()
        return sent

    def reap(self) -> int:
        """Take completions; returns how many."""
        done = self.lane_client.reap(time.monotonic_ns())
        for pending in done:
            self.lane_client.release(pending)
        return len(done)

    def words(self) -> memoryview:
        """The whole lane as u64 words."""
        return memoryview(self.memory).cast("Q")

    def is_dropped(self) -> bool:
        """True once the pool has closed the connection."""
        return self.connection.is_over()

    def close(self) -> None:
        """Let go of every descriptor."""
        self.connection.channel.close()
        for fd in (self.state_page_fd, self.wake_fd, self.bell_fd, self.lane_fd):
            with contextlib.suppress(OSError):  # a kind may have closed it
                os.close(fd)


def example_rows(spec: ModelSpec) -> dict[str, Any]:
    """One row of a model with inputs of numbers, all zero."""
    return {t.name: np.zeros((1, *t.max_shape), t.np_dtype) for t in spec.inputs}
