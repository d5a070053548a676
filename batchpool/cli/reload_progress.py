"""The states of a reload on stderr, while `batchpool reload` waits for its end."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from batchpool.core.errors import PoolError

_POLL_S = 1.0  # between two questions; each costs the supervisor a status


@contextmanager
def shown_progress(path: str) -> Iterator[None]:
    """Print the state of the reload of the pool at a socket, whenever it changes, until the end of
    the block. A pool that does not answer meanwhile is asked again: the block has its own error."""
    over = threading.Event()
    thread = threading.Thread(target=_show_states, args=(path, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _show_states(path: str, over: threading.Event) -> None:
    from batchpool.client.control import ask_status

    shown = None
    while not over.wait(_POLL_S):
        try:
            state = ask_status(path)["reload"]
        except (PoolError, OSError):
            continue
        if state and state != shown and not over.is_set():
            print(f"reloading: {state}", file=sys.stderr, flush=True)
            shown = state
