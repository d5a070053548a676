"""The only worker killed over and over under tagged load: no request is refused, lost or wrong.

    python -m bench.chaos.worker_kills [--seconds 60] [--rate 200] [--kills-per-s 2]
        [--save FILE.json]

The load is that of bench.chaos: half of it over HTTP, the rest from bp.AsyncClient and bp.Client.
The worker gets SIGKILL at a steady pace, whatever it does; one that loads at that time is spared
until it has been warm for a quarter of a second, since a pool whose worker never serves cannot
answer. Where starts take long, kills are fewer than asked for, which the table tells.

Exit status 1, with a list, if a request ended otherwise than with its right answer, or was
refused on the way; or if the 99th percentile is above the longest restart plus 100 ms. A restart
lasts from SIGKILL until a worker is warm again.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from typing import Any

from batchpool.client.session import Session
from bench.chaos.__main__ import account_of, start_load
from bench.chaos.tagged import BEATS
from bench.support.machine import percentile, report
from bench.support.serving import Served, serving

WORKER = "worker 0 of tagged"
MARGIN_S = 0.1
FLAGS = ("--devices", "cpu", "--workers-per-device", "1", "--frontends", "1", "--max-wait-ms", "2")
_LOOK_S = 0.002
_SERVES_S = 0.25


class Kills(threading.Thread):
    """SIGKILL to the only worker of a pool, at a steady pace. restarts_s: how long each took."""

    def __init__(self, served: Served, kills_per_s: float, seconds: float) -> None:
        super().__init__()
        self.restarts_s: list[float] = []
        self._served = served
        self._pause_s = 1 / kills_per_s
        self._until_s = time.monotonic() + seconds

    def run(self) -> None:
        session = Session.connect(self._served.socket)
        serves = session.state_page.serves
        due_s = time.monotonic()
        while (due_s := max(due_s + self._pause_s, time.monotonic())) < self._until_s:
            time.sleep(max(0.0, due_s - time.monotonic()))
            begun_s = time.monotonic()
            os.kill(self._served.pids()[WORKER], signal.SIGKILL)
            while serves(0):
                time.sleep(_LOOK_S)
            while not serves(0):
                time.sleep(_LOOK_S)
            self.restarts_s.append(time.monotonic() - begun_s)
            time.sleep(_SERVES_S)
        session.close()


def run(seconds: float, rate: float, kills_per_s: float) -> tuple[dict[str, Any], list[str]]:
    """The table's rows and what was violated."""
    with (
        tempfile.TemporaryDirectory() as beats,
        serving(
            ["bench.chaos.tagged:Tagged"], *FLAGS, "--log-level", "error", env={BEATS: beats}
        ) as served,
    ):
        load = start_load(served, rate, seconds)
        kills = Kills(served, kills_per_s, seconds)
        kills.start()
        try:
            kills.join()
            accounts = [account_of(process) for process in load]
        finally:
            for process in load:
                process.kill()
                process.wait()
            kills.join()
    outcomes = sum((account.outcomes for account in accounts), Counter[str]())
    retries = sum((account.retries for account in accounts), Counter[str]())
    sent = sum(account.sent for account in accounts)
    took_s = [t for account in accounts for t in account.took_s] or [0.0]
    p50_s, p99_s, most_s = (percentile(took_s, share) for share in (0.5, 0.99, 1.0))
    longest_s = max(kills.restarts_s, default=0.0)
    rows = {
        "kills": len(kills.restarts_s),
        "restart p50, most, ms": [
            round(1000 * percentile(kills.restarts_s or [0.0], share), 1) for share in (0.5, 1.0)
        ],
        "requests sent": sent,
        **{f"ended: {code}": n for code, n in outcomes.most_common()},
        **{f"sent again after: {code}": n for code, n in retries.most_common()},
        "right answers p50, p99, most, ms": [round(1000 * t, 1) for t in (p50_s, p99_s, most_s)],
    }
    faults = [f"{n} requests ended: {code}" for code, n in outcomes.items() if code != "right"]
    faults += [f"{n} requests were refused: {code}" for code, n in retries.items()]
    if outcomes.total() != sent:
        faults.append(f"{sent} requests were sent and {outcomes.total()} ended")
    if p99_s > longest_s + MARGIN_S:
        faults.append(f"p99 {p99_s:.3f} s, the longest restart {longest_s:.3f} s")
    return rows, faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--kills-per-s", type=float, default=2)
    parser.add_argument("--save")
    args = parser.parse_args()
    rows, faults = run(args.seconds, args.rate, args.kills_per_s)
    rows["violated"] = faults
    title = f"{args.kills_per_s:g} kills/s for {args.seconds:g} s at {args.rate:g} requests/s"
    report(title, rows, args.save)
    for fault in faults:
        print(f"  VIOLATED: {fault}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
