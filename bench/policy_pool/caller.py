"""A caller that sends one row now and then. A child of the fairness part.

    python -m bench.policy_pool.caller local|http WHERE

Its times are spread at random, so that they meet the batches of others at any moment. A latency
counts from the intended time. Every answer is compared.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any

import numpy as np

import batchpool as bp
from bench.load.open_sender import MODEL
from bench.policy_pool.bulk import PATH, RAW
from bench.support.children import obey, wait_until
from bench.support.models import WIDTH

_LEAST_S, _MOST_S = 0.025, 0.045  # from one row to the next


def asking(transport: str, where: str) -> Callable[[Any], bytes]:
    """A function that sends a row and returns its answer."""
    if transport == "local":
        pool = bp.Client(where)
        return lambda x: bytes(pool.infer(MODEL, x=x)["y"].tobytes())
    connection = HTTPConnection("127.0.0.1", int(where))

    def post(x: Any) -> bytes:
        connection.request("POST", PATH, x.tobytes(), {**RAW, "X-Client-Id": "caller"})
        answer = connection.getresponse()
        y = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"answered {answer.status}: {y[:200]!r}")
        return y[-x.nbytes :]

    return post


def main() -> None:
    ask = asking(*sys.argv[1:])
    x = np.random.default_rng(9).standard_normal((1, WIDTH), dtype=np.float32)
    right = (x * 2 + 1).tobytes()
    ask(x)

    def answer(message: dict[str, Any]) -> dict[str, Any]:
        random = np.random.default_rng(message["seed"])
        due_ns, end_ns = time.monotonic_ns(), time.monotonic_ns() + int(message["seconds"] * 1e9)
        took_ms = []
        while due_ns < end_ns:
            wait_until(due_ns)
            if ask(x) != right:
                raise RuntimeError("a wrong answer")
            took_ms.append((time.monotonic_ns() - due_ns) / 1e6)
            due_ns += int(random.uniform(_LEAST_S, _MOST_S) * 1e9)
        p50_ms, p99_ms, most_ms = np.quantile(took_ms, (0.5, 0.99, 1.0)).tolist()
        return {"sent": len(took_ms), "p50_ms": p50_ms, "p99_ms": p99_ms, "most_ms": most_ms}

    obey(answer)


if __name__ == "__main__":
    main()
