"""A pool behind Ray Serve: an ingress with code of its own, and replicas that have the pool.

    serve run batchpool.examples.ray_serve:app
    curl -s localhost:8000 -d '[1, 2, 3, 6]'

Each replica of the pool's deployment starts a pool, here on the CPU. For GPUs add for instance
`.options(num_replicas=2, ray_actor_options={"num_gpus": 4})`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from ray import serve
from starlette.requests import Request

from batchpool.contrib.ray import PoolDeployment


@serve.deployment
class Centred:
    """Four numbers, without their mean, through the model `affine`."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def __call__(self, request: Request) -> list[float]:
        x = np.asarray(await request.json(), np.float32)
        outputs = await self._pool.remote({"x": x - x.mean()})
        return [float(y) for y in outputs["y"]]


pool = PoolDeployment.bind("affine", serve=["--model", "batchpool.examples.affine:Affine"])
app = Centred.bind(pool)  # type: ignore[attr-defined]  # the decorator adds it
