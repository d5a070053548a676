"""Questions to a running pool over its control socket, for the command line."""

from __future__ import annotations

from typing import Any

from batchpool.client.session import Session


def ask_status(path: str, timeout_s: float = 5.0) -> dict[str, Any]:
    """The pool's own account: processes, models, lanes. PoolStopped when nobody listens."""
    session = Session.connect(path, timeout_s, attach=False)
    try:
        answer = session.ask({"op": "status"}, timeout_s)
    finally:
        session.close()
    status: dict[str, Any] = answer["status"]
    return status
