"""Time until a pool serves again after its only worker was killed; delay of a "too late".

    python -m bench.recovery [--kills 10] [--late 200] [--save FILE.json]

Part 1: SIGKILL to the only worker of a numpy model that loads at once, until the next right
answer, for a local client and over HTTP; and what a new worker's start is made of. The caller
tries again every millisecond when it is refused. Part 2: with the only worker stopped, requests
with a deadline of 300 ms: the time of their answer less the deadline.
"""

from __future__ import annotations

import argparse
import concurrent.futures as cf
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import batchpool as bp
from batchpool.client.session import Session
from bench.support.machine import percentile, report, spread
from bench.support.models import WIDTH, Affine
from bench.support.serving import Served, serving

MODEL = "bench.support.models:Affine"
WORKER = "worker 0 of affine"
PATH = "/v2/models/affine/infer"
RAW = {"Inference-Header-Content-Length": "0"}
LIMIT_S = 0.3
AT_ONCE = 10  # late requests under way: light load
X = np.arange(WIDTH, dtype=np.float32)[None]
STARTS = {
    "python": "pass",
    "python, numpy": "import numpy",
    "python and all a worker imports": "import batchpool.worker.process",
}

Ask = Callable[[float | None], bool]  # timeout, s -> whether it was served; raises bp.PoolError


# -- callers ------------------------------------------------------------------------------


def local_caller(client: bp.Client) -> Ask:
    def ask(timeout_s: float | None) -> bool:
        y = client.infer("affine", x=X, timeout_s=timeout_s)["y"]
        return bool(np.array_equal(y, X * 2 + 1))

    return ask


def http_caller(served: Served, *, raw: bool) -> Ask:
    """On a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port)
    tensor = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": X[0].tolist()}
    body = X.tobytes() if raw else json.dumps({"inputs": [tensor]}).encode()
    fields = RAW if raw else {}

    def ask(timeout_s: float | None) -> bool:
        limit = {} if timeout_s is None else {"X-Request-Timeout-Ms": f"{timeout_s * 1e3:.0f}"}
        connection.request("POST", PATH, body, {**fields, **limit})
        response = connection.getresponse()
        answer = response.read()
        if response.status == 503:
            raise bp.NotReady(answer.decode())
        if response.status == 504:
            raise bp.DeadlineExceeded(answer.decode())
        if raw:
            at = int(response.headers["Inference-Header-Content-Length"])
            return np.array_equal(np.frombuffer(answer[at:], np.float32), X[0] * 2 + 1)
        found = json.loads(answer)["outputs"][0]["data"]
        return bool(found == (X[0] * 2 + 1).tolist())

    return ask


# -- part 1 -------------------------------------------------------------------------------


def recoveries_s(served: Served, ask: Ask, kills: int) -> list[float]:
    """From each SIGKILL to the next right answer."""
    took = []
    for _ in range(kills):
        served_once(ask, None)
        pid = served.pids()[WORKER]
        begun = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        served_once(ask, None)
        took.append(time.perf_counter() - begun)
    return took


def served_once(ask: Ask, timeout_s: float | None) -> None:
    """Ask until there is a worker; its answer must be right."""
    while True:
        try:
            if not ask(timeout_s):
                raise SystemExit("wrong answer")
            return
        except bp.NotReady:
            time.sleep(0.001)


def restarts_s(served: Served, ask: Ask, kills: int) -> tuple[list[float], list[float]]:
    """Until the pool knows of each death, and from then until the next worker is warm."""
    session = Session.connect(served.socket)
    noticed, warm = [], []
    for _ in range(kills):
        served_once(ask, None)
        begun = time.perf_counter()
        os.kill(served.pids()[WORKER], signal.SIGKILL)
        while session.state_page.serves(0):
            time.sleep(0.0002)
        known = time.perf_counter()
        while not session.state_page.serves(0):
            time.sleep(0.0002)
        noticed.append(known - begun)
        warm.append(time.perf_counter() - known)
    session.close()
    return noticed, warm


def start_s(code: str, count: int) -> list[float]:
    """A process that gets as far as this."""
    took = []
    for _ in range(count):
        begun = time.perf_counter()
        ended = f"{code}; import os; os._exit(0)"  # tidying up takes time too
        subprocess.run([sys.executable, "-c", ended], check=True)
        took.append(time.perf_counter() - begun)
    return took


def load_and_warm_up_s(count: int) -> list[float]:
    """Times of a worker's load and warm-up, in this process and without its imports."""
    from batchpool.model import spec_of
    from batchpool.worker.backends.cpu import NumpyBackend

    took = []
    for _ in range(count):
        begun = time.perf_counter()
        model = Affine()
        model.load("cpu")
        backend = NumpyBackend(model)
        for n in (1, 1, 64, 64):
            rows = {t.name: np.zeros((n, *t.max_shape), np.float32) for t in spec_of(Affine).inputs}
            backend.finish(backend.launch(n, rows, {"x": None}, True))
        took.append(time.perf_counter() - begun)
    return took


# -- part 2 -------------------------------------------------------------------------------


def lateness_s(callers: list[Ask], count: int) -> list[float]:
    """Delays from the deadline to the answer of `count` requests that cannot be served."""

    def one_after_another(ask: Ask) -> list[float]:
        late = []
        for _ in range(max(1, count // len(callers))):
            due = time.perf_counter() + LIMIT_S
            try:
                ask(LIMIT_S)
            except bp.DeadlineExceeded:
                late.append(time.perf_counter() - due)
            else:
                raise SystemExit("a stopped worker has answered")
        return late

    with cf.ThreadPoolExecutor(len(callers)) as threads:
        return [late for part in threads.map(one_after_another, callers) for late in part]


def milliseconds(values: list[float]) -> dict[str, float]:
    return {
        "p50": round(percentile(values, 0.5) * 1e3, 1),
        "max": round(max(values) * 1e3, 1),
        "requests": len(values),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--late", type=int, default=200)
    parser.add_argument("--save")
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    flags = ["--frontends", "1", "--max-wait-ms", "0", "--batch-timeout-s", "600"]
    flags += ["--log-level", "error"]  # not a line for each kill
    with serving([MODEL], *flags) as served, bp.Client(served.socket) as client:
        local, raw = local_caller(client), http_caller(served, raw=True)
        for name, ask in (("local client", local), ("HTTP", raw)):
            took = recoveries_s(served, ask, args.kills)
            rows[f"SIGKILL to the next right answer, {name}, s"] = spread(took, 3)
        noticed, warm = restarts_s(served, local, args.kills)
        rows["of it: the death is known after, s"] = spread(noticed, 4)
        rows["of it: from then until the next is warm, s"] = spread(warm, 3)
        for name, code in STARTS.items():
            rows[f"a start of {name}, s"] = spread(start_s(code, args.kills), 3)
        rows["load and warm-up alone, s"] = spread(load_and_warm_up_s(args.kills), 4)

        pid = served.pids()[WORKER]
        os.kill(pid, signal.SIGSTOP)
        try:
            for name, callers in (
                ("JSON", [http_caller(served, raw=False) for _ in range(AT_ONCE)]),
                ("raw", [http_caller(served, raw=True) for _ in range(AT_ONCE)]),
                ("local client", [local] * AT_ONCE),
            ):
                late = lateness_s(callers, args.late)
                rows[f"answered after a deadline of 300 ms, {name}, ms"] = milliseconds(late)
        finally:
            os.kill(pid, signal.SIGCONT)
        served_once(raw, None)
    report("Deaths and deadlines", rows, args.save)


if __name__ == "__main__":
    main()
