"""Questions to a running pool over its control socket, for the command line."""

from __future__ import annotations

import time
from typing import Any

from batchpool.client.session import Session
from batchpool.control.channel import close_all
from batchpool.control.messages import (
    Batches,
    Drain,
    DrainState,
    GetBatches,
    GetStatus,
    Reload,
    ReloadReply,
    StatusReply,
)
from batchpool.shm.stats.flight_recorder import FlightRecorder, batch_fields

_LONGEST_S = 1e6  # eleven days


def ask_status(path: str, timeout_s: float = 5.0) -> dict[str, Any]:
    """The pool's status: processes, models, lanes. PoolStopped when no pool listens."""
    session = Session.connect(path, timeout_s, attach=False)
    try:
        return session.ask(GetStatus(), StatusReply, timeout_s).status
    finally:
        session.close()


def ask_batches(path: str, n: int, timeout_s: float = 5.0) -> list[dict[str, Any]]:
    """The last n batches of the flight recorder as `batch_fields`, the newest last."""
    session = Session.connect(path, timeout_s, attach=False)
    try:
        names, fds = session.ask_for_fds(GetBatches(), Batches, timeout_s)
        try:
            entries = FlightRecorder(fds[0], writable=False).last(n)
        finally:
            close_all(fds)
    finally:
        session.close()
    now_ns = time.monotonic_ns()
    return [batch_fields(entry, names.models, names.workers, now_ns) for entry in entries]


def ask_reload(path: str, *, wait: bool) -> tuple[bool, str]:
    """Reload: (whether it was done, what was done or why not). wait: until its end, which may
    take as long as the models load; else only until it is asked for."""
    session = Session.connect(path, attach=False)
    try:
        reply = session.ask(Reload(wait=wait), ReloadReply, _LONGEST_S if wait else 10.0)
    finally:
        session.close()
    return reply.done, reply.text


def ask_cancel(path: str) -> str:
    """Give up the reload under way; says what comes of that."""
    session = Session.connect(path, attach=False)
    try:
        return session.ask(Reload(cancel=True), ReloadReply).text
    finally:
        session.close()


def ask_drain(path: str, *, on: bool | None) -> tuple[bool, bool, int]:
    """Take no new requests (on), or take them again; None changes nothing. Returns whether the
    pool drains, whether all is answered, and the rows under way."""
    session = Session.connect(path, attach=False)
    try:
        state = session.ask(Drain(on), DrainState)
    finally:
        session.close()
    return state.draining, state.answered, state.rows
