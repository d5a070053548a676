"""LitServe: API processes of FastAPI and worker processes; the raw body and a raw answer.

It parses JSON unless the endpoint declares something else, here the body's bytes. It reads that
annotation as an object, so that annotations must not be postponed here.
"""

from typing import Annotated, Any

import litserve
from fastapi import Depends, Request, Response
from peer_model import bodies_of, make_model, rows_of
from plan import HOST, PLAN, PORT


async def body_of(request: Request) -> bytes:
    return await request.body()


class Infer(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self._model = make_model(PLAN.model, PLAN.device)

    def decode_request(self, request: Annotated[bytes, Depends(body_of)]) -> Any:
        return request

    def batch(self, inputs: Any) -> Any:
        return rows_of(inputs)

    def predict(self, x: Any) -> Any:
        return self._model(x)

    def unbatch(self, output: Any) -> Any:
        return bodies_of(output)

    def encode_response(self, output: bytes) -> Response:
        return Response(output, media_type="application/octet-stream")


if __name__ == "__main__":
    api = Infer(max_batch_size=PLAN.max_batch, batch_timeout=PLAN.wait_ms / 1000, api_path="/infer")
    server = litserve.LitServer(
        api,
        accelerator="cpu",  # the model picks its device itself
        workers_per_device=PLAN.workers,
        fast_queue=PLAN.variant == "fast queue",
        timeout=30,
    )
    server.run(
        host=HOST,
        port=PORT,
        num_api_servers=PLAN.apis,
        log_level="warning",
        generate_client_file=False,
        access_log=False,
        backlog=4096,
    )
