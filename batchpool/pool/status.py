"""The pool's account of itself, for `batchpool status`."""

from __future__ import annotations

import os
import time
from typing import Any

from batchpool.core.lifecycle import PoolState
from batchpool.pool.children import Child, Post
from batchpool.pool.holdings import Holdings
from batchpool.pool.staff import Staff


def compose(
    holdings: Holdings, staff: Staff, started_ns: int, tallies: dict[str, Any]
) -> dict[str, Any]:
    """Plain values for JSON. tallies: the batcher's counts per model, {} if it cannot say."""
    plan = holdings.plan
    board = holdings.board
    models = {}
    for index, model in enumerate(plan.models):
        counts = dict(tallies.get(model.spec.name, {}))
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
        "uptime_s": round((time.monotonic_ns() - started_ns) / 1e9, 1),
        "processes": _processes(staff),
        "models": models,
        "lanes": lanes,
    }


def _processes(staff: Staff) -> list[dict[str, Any]]:
    rows = [
        {
            "name": "supervisor",
            "pid": os.getpid(),
            "state": "running",
            "restarts": 0,
            "last_error": "",
        }
    ]
    places: list[tuple[Post, Child | None]] = [(staff.batcher_post, staff.batcher)]
    places += list(zip(staff.frontend_posts, staff.frontends, strict=True))
    places += [(seat.post, seat.child) for seat in staff.seats]
    for post, child in places:
        rows.append(
            {
                "name": post.name,
                "pid": None if child is None else child.pid,
                "state": "gone" if child is None else child.state,
                "restarts": post.restarts,
                "last_error": post.last_error,
            }
        )
    return rows
