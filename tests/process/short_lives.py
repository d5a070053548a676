"""Forks clients that end in every way there is: `short_lives.py SOCKET ROUNDS`.

Each child attaches, does what its kind says with most of a lane's slots, and ends. They all
belong to one short-lived parent, as they would in a script or a test run.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

import batchpool as bp

ROWS = 900  # of a lane's 921 that may be claimed


def x_of(n: int) -> Any:
    return np.arange(4 * n, dtype=np.float32).reshape(n, 4)


def killed() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def closes(client: bp.Client) -> None:
    x = x_of(ROWS)
    assert (client.infer("affine", x=x)["y"] == 2 * x + 1).all()
    client.close()


def raises(client: bp.Client) -> None:
    client.submit("affine", x=x_of(ROWS))
    raise RuntimeError("not caught")


def exits(client: bp.Client) -> None:
    client.submit("affine", x=x_of(ROWS))
    sys.exit(5)


def terminated(client: bp.Client) -> None:
    client.submit("affine", x=x_of(ROWS))
    os.kill(os.getpid(), signal.SIGTERM)


def dies_before_publishing(client: bp.Client) -> None:
    """Slots are claimed and written; the ring says nothing of them."""
    client.infer("special", x=np.ones((1, 3), np.float32))
    port = client._session.ports["special"]  # type: ignore[union-attr]
    port.flush = killed  # type: ignore[method-assign]
    client.submit("special", x=np.ones((ROWS, 3), np.float32))


def dies_after_publishing(client: bp.Client) -> None:
    client.submit("affine", x=x_of(ROWS))
    killed()


def dies_while_its_rows_run(client: bp.Client) -> None:
    client.submit("slow", tag=[1], seconds=[0.05])
    client.submit("slow", tag=np.arange(ROWS), seconds=np.zeros(ROWS, np.float32))
    killed()


def dies_with_answers_not_taken(client: bp.Client) -> None:
    client.infer("affine", x=x_of(1))
    port = client._session.ports["affine"]  # type: ignore[union-attr]
    pending = port.submit(*rows_of(client), 2**62)
    port.flush()
    client._session.ring()  # type: ignore[union-attr]
    while port.lane.state[pending.slots].min() != 5:  # DONE
        os.sched_yield()
    killed()


def rows_of(client: bp.Client) -> tuple[Any, int]:
    from batchpool.core.tensors import check_rows

    facts = client._session.facts("affine")  # type: ignore[union-attr]
    return check_rows(facts.spec, {"x": x_of(ROWS)}, None), 1


KINDS: list[tuple[Callable[[bp.Client], None], int]] = [
    (closes, 0),
    (raises, 1 << 8),
    (exits, 5 << 8),
    (terminated, signal.SIGTERM),
    (dies_before_publishing, signal.SIGKILL),
    (dies_after_publishing, signal.SIGKILL),
    (dies_while_its_rows_run, signal.SIGKILL),
    (dies_with_answers_not_taken, signal.SIGKILL),
]


def start(kind: Callable[[bp.Client], None], socket: str) -> int:
    pid = os.fork()
    if pid == 0:
        status = 0
        try:
            kind(bp.Client(socket))
        except SystemExit as exc:
            status = int(exc.code or 0)
        except RuntimeError:
            status = 1
        finally:
            os._exit(status)
    return pid


def main(socket: str, rounds: int) -> None:
    for _ in range(rounds):
        pids = [(start(kind, socket), kind, status) for kind, status in KINDS]
        for pid, kind, status in pids:
            found = os.waitpid(pid, 0)[1]
            assert found == status, f"{kind.__name__} ended with {found}, not {status}"
        with bp.Client(socket) as client:
            closes(client)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
