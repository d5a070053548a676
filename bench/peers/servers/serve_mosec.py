"""Mosec: its HTTP front is Rust; bytes in and out, undecoded."""

from __future__ import annotations

import sys
from typing import Any

from mosec import Server, Worker
from peer_model import bodies_of, make_model, rows_of
from plan import HOST, PLAN, PORT


class Infer(Worker):
    resp_mime_type = "application/octet-stream"

    def __init__(self) -> None:
        super().__init__()
        self._model = make_model(PLAN.model, PLAN.device)

    def deserialize(self, body: bytes) -> bytes:
        return body

    def serialize(self, body: bytes) -> bytes:
        return body

    def forward(self, bodies: Any) -> Any:
        return bodies_of(self._model(rows_of(bodies)))


if __name__ == "__main__":
    told = {"--address": HOST, "--port": PORT, "--log-level": "error", "--timeout": 30000}
    told |= {"--capacity": PLAN.in_flight}
    sys.argv[1:] = [str(word) for flag in told.items() for word in flag]
    server = Server()
    server.append_worker(
        Infer,
        num=PLAN.workers,
        max_batch_size=PLAN.max_batch,
        max_wait_time=int(PLAN.wait_ms),
        route="/infer",
    )
    server.run()
