"""The pool's account of itself, for `batchpool status`."""

from __future__ import annotations

import os
import time
from typing import Any

from batchpool.core.lifecycle import PoolState
from batchpool.pool.children import Child, Post
from batchpool.pool.holdings import Holdings
from batchpool.pool.staff import Staff
from batchpool.shm.pulse import Pulse


def compose(
    holdings: Holdings, staff: Staff, started_ns: int, tallies: dict[str, Any] | None
) -> dict[str, Any]:
    """Plain values for JSON. tallies: the batcher's counts per model, {} while there is none to
    ask, None if it does not answer."""
    now_ns = time.monotonic_ns()
    plan = holdings.plan
    board = holdings.board
    models = {}
    for index, model in enumerate(plan.models):
        counts = dict((tallies or {}).get(model.spec.name, {}))
        batches, rows = counts.get("batches", 0), counts.get("rows", 0)
        if batches:
            counts["mean_batch"] = round(rows / batches, 2)
            counts["mean_extents"] = round(counts["extents"] / batches, 2)
        models[model.spec.name] = {
            "ready": board.serves(index),
            "workers": f"{int(board.serving[index])}/{len(model.workers)}",
            **counts,
        }
    lanes = [
        {
            "lane": entry.number,
            "model": plan.models[entry.model].spec.name,
            "owner": entry.owner,
            "slots": entry.layout.slots,
            "claimed": entry.claimed(),
            "bytes": entry.layout.total_bytes,
        }
        for entry in holdings.lanes
    ]
    return {
        "state": PoolState(board.state.get()).name.lower(),
        "url": plan.url,
        "socket": plan.socket,
        "uptime_s": round((now_ns - started_ns) / 1e9, 1),
        "processes": _processes(staff, holdings.pulse, now_ns, silent=tallies is None),
        "models": models,
        "lanes": lanes,
    }


def _processes(staff: Staff, pulse: Pulse, now_ns: int, *, silent: bool) -> list[dict[str, Any]]:
    """progress_age_s: since the last stamp of a watched process; None before its first."""
    rows = [
        {
            "name": "supervisor",
            "pid": os.getpid(),
            "state": "running",
            "restarts": 0,
            "last_error": "",
        }
    ]
    watched = [_row(staff.batcher_post, staff.batcher, silent=silent)]
    for post, child in zip(staff.frontend_posts, staff.frontends, strict=True):
        watched.append(_row(post, child))
    for number, (row, child) in enumerate(zip(watched, staff.watched(), strict=True)):
        last_ns = None if child is None else pulse.last_ns(number, child.started_ns)
        row["progress_age_s"] = None if last_ns is None else round((now_ns - last_ns) / 1e9, 2)
    return [*rows, *watched, *(_row(seat.post, seat.child) for seat in staff.seats)]


def _row(post: Post, child: Child | None, *, silent: bool = False) -> dict[str, Any]:
    """silent: it was asked for something and did not answer."""
    state = "gone" if child is None else "killed" if child.condemned else child.state
    return {
        "name": post.name,
        "pid": None if child is None else child.pid,
        "state": "not answering" if silent and state == "running" else state,
        "restarts": post.restarts,
        "last_error": post.last_error,
    }
