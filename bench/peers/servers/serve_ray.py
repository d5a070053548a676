"""Ray Serve: one HTTP proxy and replicas with `serve.batch`; the raw body and a raw answer."""

from __future__ import annotations

import os
import signal
from typing import Any

import ray
from peer_model import bodies_of, make_model, rows_of
from plan import HOST, PLAN, PORT
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

_QUIET = {"enable_access_log": False, "log_level": "WARNING"}
_GPUS = 1 / PLAN.workers if PLAN.device == "cuda" else 0


@serve.deployment(
    num_replicas=PLAN.workers,
    max_ongoing_requests=4096,
    ray_actor_options={"num_cpus": 1, "num_gpus": _GPUS},
    logging_config=_QUIET,
)
class Infer:
    def __init__(self) -> None:
        self._model = make_model(PLAN.model, PLAN.device)

    @serve.batch(max_batch_size=PLAN.max_batch, batch_wait_timeout_s=PLAN.wait_ms / 1000)
    async def of_batch(self, bodies: Any) -> Any:
        return bodies_of(self._model(rows_of(bodies)))

    async def __call__(self, request: Request) -> Response:
        answer = await self.of_batch(await request.body())
        return Response(answer, media_type="application/octet-stream")


if __name__ == "__main__":
    ray.init(
        num_cpus=max(len(os.sched_getaffinity(0)), PLAN.workers + 1),
        include_dashboard=False,
        object_store_memory=256 << 20,
        log_to_driver=False,
        configure_logging=False,
        _temp_dir=f"{PLAN.folder}/r",
    )
    serve.start(http_options={"host": HOST, "port": PORT}, logging_config=_QUIET)
    deployed = Infer.bind()  # type: ignore[attr-defined]  # the decorator adds it
    serve.run(deployed, route_prefix="/infer", name="app")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    ray.shutdown()
