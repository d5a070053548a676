"""A local client that keeps single rows under way in a pool. A child of bench/batch_gain.py.

    python -m bench.load.gain_client MODEL INPUT ROWS.npy RIGHT.npy TOLERANCE

Rows are floats, or texts as bytes of a fixed length. Every answer is compared.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any

import numpy as np

import batchpool as bp
from bench.scaling.workloads import Judge, Known
from bench.support.children import obey, wait_until


def main() -> None:
    model, tensor, rows_path, right_path, tolerance = sys.argv[1:]
    rows = np.load(rows_path)
    if rows.dtype.kind == "S":
        rows = rows.astype(object)
    known = Known(Judge(np.load(right_path), float(tolerance)))
    pools: dict[str, bp.Client] = {}

    def answer(message: dict[str, Any]) -> dict[str, Any]:
        """Rows per second for so many seconds with so many rows under way."""
        pool = pools.get(message["socket"])
        if pool is None:
            pool = pools[message["socket"]] = bp.Client(message["socket"])
        under_way: deque[Any] = deque()
        done = i = wrong = 0
        wait_until(message["start_ns"])
        start_s = time.perf_counter()
        while (took_s := time.perf_counter() - start_s) < message["seconds"] or under_way:
            while len(under_way) < message["under_way"] and took_s < message["seconds"]:
                at = i % len(rows)
                under_way.append((at, pool.submit(model, {tensor: rows[at : at + 1]})))
                i += 1
            at, future = under_way.popleft()
            (out,) = future.result().values()
            wrong += not known.is_right(at, out[0].tobytes())
            done += 1
        return {"rows_per_s": done / took_s, "wrong": wrong}

    obey(answer)


if __name__ == "__main__":
    main()
