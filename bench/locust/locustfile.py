"""Users of Locust: requests that are answered at once, and tasks whose results another box tells.

    batchpool serve --model bench.boxes.models:Sleeper --option row_ms=0.1 --port 18900
    locust -f bench/locust/locustfile.py --headless -u 100 -r 100 -t 60s \\
        --boxes http://127.0.0.1:18900 InferCaller

    batchpool serve --model bench.boxes.models:Sleeper --port 18901 --tasks \\
        --tasks-store redis://127.0.0.1:6379        # and so on, on 18902 and 18903
    locust -f bench/locust/locustfile.py --headless -u 50 -r 50 -t 60s \\
        --boxes http://127.0.0.1:18901,http://127.0.0.1:18902,http://127.0.0.1:18903 TaskCaller

Each user sends --rate requests, or tasks, a second (10), as long as answers come that fast: 100
users are 1,000 requests/s. Every answer is checked; one that is wrong, and a task without a result,
is a failure, for which Locust exits with status 1.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

from locust import FastHttpUser, constant_throughput, events, task

_INFER = "/v2/models/sleeper/infer"
_WAIT_S = 20
_numbers = itertools.count()


@events.init_command_line_parser.add_listener
def _add_arguments(parser: Any) -> None:
    parser.add_argument(
        "--boxes", default="http://127.0.0.1:8000", help="addresses of the boxes, with commas"
    )
    parser.add_argument("--rate", type=float, default=10, help="of one user, a second")


class _Caller(FastHttpUser):
    """A user with a box of its own. number: of this user among all."""

    abstract = True
    host = ""  # each request has its own

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        options = environment.parsed_options
        self.boxes: list[str] = options.boxes.split(",")
        self.wait_time = constant_throughput(options.rate).__get__(self)
        self.number = next(_numbers)
        self._count = itertools.count(self.number * 1_000_000)

    def next_input(self) -> tuple[int, bytes]:
        """A value that no other request has, and its body."""
        value = next(self._count)
        return value, json.dumps({"x": [value]}).encode()

    def box(self, turn: int = 0) -> str:
        """The address of its box, or of the one `turn` places behind it."""
        return self.boxes[(self.number + turn) % len(self.boxes)]


def _check(response: Any, value: int) -> None:
    """Count an answer that is not that of the value as a failure."""
    if response.status_code != 200:
        response.failure(f"status {response.status_code}")
    elif response.json() != {"y": [2 * value + 1]}:
        response.failure(f"a wrong answer to {value}: {response.text[:80]}")
    else:
        response.success()


class InferCaller(_Caller):
    """Requests that are answered at once."""

    @task
    def infer(self) -> None:
        """Send one row, and check its answer."""
        value, body = self.next_input()
        with self.client.post(
            self.box() + _INFER, data=body, headers={"content-type": "application/json"},
            name="infer", catch_response=True,
        ) as response:  # fmt: skip
            _check(response, value)


class TaskCaller(_Caller):
    """Tasks that one box takes and another one answers."""

    @task
    def submit_and_collect(self) -> None:
        """Submit a task here, and collect its result there."""
        value, body = self.next_input()
        headers = {
            "content-type": "application/json", "prefer": "respond-async",
            "idempotency-key": str(value), "x-client-id": str(self.number),
        }  # fmt: skip
        with self.client.post(
            self.box() + _INFER, data=body, headers=headers, name="submit", catch_response=True
        ) as response:
            if response.status_code != 202:
                response.failure(f"status {response.status_code}")
                return
            response.success()
            path = response.headers["location"]
        with self.client.get(
            f"{self.box(1)}{path}/result?wait_s={_WAIT_S}", name="collect", catch_response=True
        ) as response:
            _check(response, value)
