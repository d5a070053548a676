"""CPU time of one embedding in the front end: OpenAI's road beside the Open Inference Protocol.

    python -m bench.embedding_cost [--connections 8] [--requests 1500] [--rounds 7] [--save F.json]

One text in, a vector of 384 floats out, of a model that does no work. All roads in turns at one
pool with one front end; the CPU time is the scheduler's own of the front end's threads.
"""

from __future__ import annotations

import argparse
import http.client
import json
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

import batchpool as bp
from bench.process_cost import ran_ns
from bench.support.machine import report, spread
from bench.support.serving import serving

_TEXT = "A sentence of some words, as callers embed them."
_VECTOR = np.linspace(-1, 1, 384, dtype=np.float32)


class Vector(bp.Model):
    """One vector, whatever the text."""

    framework = "numpy"
    inputs = (bp.Tensor("text", "bytes", (), max_bytes=1024),)
    outputs = (bp.Tensor("vector", "float32", (384,)),)

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        return {"vector": np.broadcast_to(_VECTOR, (batch.n, 384))}


class _Question(NamedTuple):
    path: str
    body: Any


_OIP = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [_TEXT]}
_INFER = "/v2/models/vector/infer"
_BINARY = {"parameters": {"binary_data_output": True}}
QUESTIONS = {
    "/v1/embeddings, base64": _Question(
        "/v1/embeddings", {"model": "vector", "input": _TEXT, "encoding_format": "base64"}
    ),
    "/v1/embeddings, float": _Question("/v1/embeddings", {"model": "vector", "input": _TEXT}),
    "/v2 infer, JSON in and out": _Question(_INFER, {"inputs": [_OIP]}),
    "/v2 infer, JSON in, binary out": _Question(_INFER, {"inputs": [_OIP], **_BINARY}),
}


def _send(port: int, question: _Question, requests: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = json.dumps(question.body).encode()
    for _ in range(requests):
        connection.request("POST", question.path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200 or len(answer) < _VECTOR.nbytes:
            raise SystemExit(f"{response.status}: {answer[:200]!r}")
    connection.close()


def costs(connections: int, requests: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds a request of each round, by road; the first round warms up."""
    found: dict[str, list[float]] = defaultdict(list)
    flags = ("--frontends", "1", "--devices", "cpu", "--max-wait-ms", "0")
    with serving(["bench.embedding_cost:Vector"], *flags) as pool, ThreadPoolExecutor() as threads:
        (pid,) = (pid for name, pid in pool.pids().items() if name.startswith("frontend"))
        each = requests // connections
        for turn in range(rounds + 1):
            for name, question in QUESTIONS.items():
                before_ns = ran_ns(pid)
                list(
                    threads.map(lambda _, q=question: _send(pool.port, q, each), range(connections))
                )
                if turn:
                    found[name].append((ran_ns(pid) - before_ns) / (each * connections) / 1e3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--requests", type=int, default=1500, help="of each road, in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--save")
    args = parser.parse_args()
    found = costs(args.connections, args.requests, args.rounds)
    rows = {f"us a request: {name}": spread(values, 1) for name, values in found.items()}
    report(f"front end's CPU time, {args.connections} connections", rows, args.save)


if __name__ == "__main__":
    main()
