"""Questions to a running pool over its control socket, for the command line."""

from __future__ import annotations

import time
from typing import Any

from batchpool.client.session import Session
from batchpool.control.channel import close_all
from batchpool.shm.stats.flight_recorder import FlightRecorder, batch_fields

_LONGEST_S = 1e6  # eleven days


def ask_status(path: str, timeout_s: float = 5.0) -> dict[str, Any]:
    """The pool's own account: processes, models, lanes. PoolStopped when nobody listens."""
    session = Session.connect(path, timeout_s, attach=False)
    try:
        answer = session.ask({"op": "status"}, timeout_s)
    finally:
        session.close()
    status: dict[str, Any] = answer["status"]
    return status


def ask_batches(path: str, n: int, timeout_s: float = 5.0) -> list[dict[str, Any]]:
    """The last n batches of the flight recorder as `batch_fields`, the newest last."""
    session = Session.connect(path, timeout_s, attach=False)
    try:
        answer, fds = session.ask_for_fds({"op": "batches"}, timeout_s)
        try:
            entries = FlightRecorder(fds[0], writable=False).last(n)
        finally:
            close_all(fds)
    finally:
        session.close()
    now_ns = time.monotonic_ns()
    models, workers = answer["models"], answer["workers"]
    return [batch_fields(entry, models, workers, now_ns) for entry in entries]


def ask_reload(path: str, *, wait: bool) -> tuple[bool, str]:
    """Reload: (whether it was done, what was done or why not). wait: until its end, which may
    take as long as the models load; else only until it is asked for."""
    session = Session.connect(path, attach=False)
    try:
        answer = session.ask({"op": "reload", "wait": wait}, _LONGEST_S if wait else 10.0)
    finally:
        session.close()
    return answer["done"], answer["text"]


def ask_cancel(path: str) -> str:
    """Give up the reload under way; says what comes of that."""
    session = Session.connect(path, attach=False)
    try:
        answer = session.ask({"op": "reload", "cancel": True})
    finally:
        session.close()
    text: str = answer["text"]
    return text


def ask_drain(path: str, *, on: bool | None) -> tuple[bool, bool, int]:
    """Take no new requests (on), or take them again; None changes nothing. Returns whether the
    pool drains, whether all is answered, and the rows under way."""
    session = Session.connect(path, attach=False)
    try:
        answer = session.ask({"op": "drain", "on": on})
    finally:
        session.close()
    return answer["draining"], answer["answered"], answer["rows"]
