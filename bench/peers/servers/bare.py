"""The model alone, one process, no HTTP: rows per second of batches, bytes in and bytes out.

Prints {batch: rows per second} as JSON.
"""

from __future__ import annotations

import json
import time

import numpy as np
from peer_model import WIDTH, bodies_of, make_model, rows_of
from plan import PLAN


def main() -> None:
    model = make_model(PLAN.model, PLAN.device)
    rows = np.random.default_rng(5).standard_normal((256, WIDTH), dtype=np.float32)
    bodies = bodies_of(rows)
    rates = {}
    for n in (64, 128, 256):
        bodies_of(model(rows_of(bodies[:n])))
        done, start_s = 0, time.perf_counter()
        while (took_s := time.perf_counter() - start_s) < PLAN.seconds:
            bodies_of(model(rows_of(bodies[:n])))
            done += n
        rates[n] = done / took_s
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
