"""An open loop on one server: so many requests a second, whatever becomes of the answers.

By bench/load/http_load.py: Poisson times, several processes, a latency counts from the intended
time. Every byte of every answer is judged. Only for servers that take raw bodies.
"""

from __future__ import annotations

import http.client
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.load.http_load import Plan, offer
from bench.peers.forms import ROW_BYTES
from bench.peers.load import Wrk, ask
from bench.peers.server import GaveUp
from bench.peers.split import all_cores
from bench.support.children import Child, on_cores

_CONNECTIONS = 256
_SENDERS = 4
_WARM_S = 0.3


@contextmanager
def senders(wrk: Wrk) -> Iterator[list[Child]]:
    """On the cores of the load; no more than there are."""
    cores = wrk.split.of_load(all_cores())
    with ExitStack() as stack:
        with on_cores(cores):
            n = min(_SENDERS, max(1, len(cores) // 2))
            children = [stack.enter_context(Child("bench.load.http_load")) for _ in range(n)]
        yield children


def offered(
    wrk: Wrk, children: Sequence[Child], rate_per_s: float, seconds: float, round_: int
) -> dict[str, Any]:
    """The outcome of the load as one flat object. Raises GaveUp when an answer was wrong."""
    server, asked = wrk.server, wrk.asked
    with tempfile.TemporaryDirectory(prefix="bp-") as folder:
        rows, right = Path(folder) / "rows.npy", Path(folder) / "right.npy"
        np.save(rows, asked.rows)
        np.save(right, asked.right)
        plan = Plan(
            port=server.port,
            path=server.path,
            rows=str(rows),
            right=str(right),
            tolerance=asked.tolerance,
            head=_head(wrk),
            connections=_CONNECTIONS,
            seconds=seconds,
            rate_per_s=rate_per_s,
            heads=wrk.heads[0],
        )
        try:
            offer(children, replace(plan, seconds=_WARM_S))  # the children have started then
            seen = offer(children, plan)
        except (OSError, RuntimeError) as error:
            raise GaveUp(f"{rate_per_s:,.0f} requests/s offered: {error!r}") from None
    if seen.wrong:
        raise GaveUp(f"{seen.wrong} wrong answers at {rate_per_s:,.0f} requests/s offered")
    told = asdict(seen)
    return {
        "peer": server.peer.name,
        "model": server.model,
        "round": round_,
        "offered_per_s": rate_per_s,
        "seconds": seconds,
        "connections": _CONNECTIONS,
        "senders": len(children),
        **{key: round(value, 3) for key, value in told.items()},
    }


def _head(wrk: Wrk) -> str:
    """The bytes before the row in every answer of the same length."""
    try:
        status, body = ask(wrk.server, wrk.asked.rows[0], 30.0)
    except (OSError, http.client.HTTPException) as error:
        raise GaveUp(f"answers nothing any more: {error!r}") from None
    if status != 200:
        raise GaveUp(f"answered {status}")
    return body[:-ROW_BYTES].decode()
