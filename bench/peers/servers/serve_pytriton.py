"""PyTriton: Triton's own HTTP server, and threads of one Python process that run the function."""

from __future__ import annotations

from typing import Any

import numpy as np
from peer_model import make_model
from plan import HOST, PLAN, PORT
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


class Infer:
    def __init__(self) -> None:
        self._model = make_model(PLAN.model, PLAN.device)

    @batch
    def __call__(self, x: Any) -> dict[str, Any]:
        return {"y": self._model(x)}


if __name__ == "__main__":
    config = TritonConfig(
        http_address=HOST,
        http_port=PORT,
        http_thread_count=PLAN.apis,
        allow_grpc=False,
        allow_metrics=False,
        log_verbose=0,
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name=PLAN.model,
            infer_func=[Infer() for _ in range(PLAN.workers)],
            inputs=[Tensor(name="x", dtype=np.float32, shape=(512,))],
            outputs=[Tensor(name="y", dtype=np.float32, shape=(512,))],
            config=ModelConfig(
                max_batch_size=PLAN.max_batch,
                batcher=DynamicBatcher(max_queue_delay_microseconds=int(PLAN.wait_ms * 1000)),
            ),
        )
        triton.serve()
