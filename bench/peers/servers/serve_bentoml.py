"""BentoML: a service whose batched method takes JSON.

It takes no raw bodies for a batched method: its HTTP side takes JSON, and a mounted ASGI
application would need a second service in front. It waits as it sees fit: there is no wait to set,
`max_latency_ms` only says when it refuses.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import bentoml
import numpy as np
from peer_model import make_model
from plan import HOST, PLAN, PORT


@bentoml.service(
    workers=PLAN.workers,
    traffic={"timeout": 60, "max_concurrency": 4096},
    metrics={"enabled": False},
    logging={"access": {"enabled": False}},
)
class Served:
    def __init__(self) -> None:
        self._model = make_model(PLAN.model, PLAN.device)

    @bentoml.api(
        batchable=True,
        batch_dim=0,
        max_batch_size=PLAN.max_batch,
        max_latency_ms=60000,
        route="/infer",
    )
    def infer(self, x: np.ndarray) -> np.ndarray:
        y: np.ndarray = self._model(np.ascontiguousarray(x, dtype=np.float32))
        return y


if __name__ == "__main__":
    program = str(Path(sys.executable).parent / "bentoml")
    place = ["--host", HOST, "--port", str(PORT), "--working-dir", str(Path(__file__).parent)]
    os.execv(program, [program, "serve", "serve_bentoml:Served", *place])
