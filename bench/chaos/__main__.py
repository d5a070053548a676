"""Tagged load while processes are killed and stopped; every request is accounted for.

    python -m bench.chaos [--seconds 600] [--rate 200] [--seed N] [--kills-only]
        [--scrapes-per-s 0] [--save FILE.json]

A pool with two workers and two front ends gets `rate` requests per second, half of them over
HTTP, the rest from bp.AsyncClient and bp.Client. Each has a tag of its own, 1 to 4 rows and a
deadline of 5 s, and its answer is checked whole. Clients send again only what was refused (503,
after Retry-After) and what was on a connection that broke.

Meanwhile every kind of process but the supervisor gets SIGKILL or SIGSTOP at random moments,
workers and batcher while rows are RUNNING. A stopped process is continued after 0.2 to 3 s,
except for half of the stopped workers, which the pool must find by itself (batch_timeout_s = 2).
Stopped batchers and front ends it finds after 4 s (stall_timeout_s); those this program continues
before, and 3 s leave it 2 s to answer again within the 5 s that are asked for. Short-lived
clients die and stop in the middle of their calls. --kills-only leaves the stops out. /metrics may
be scraped all the time (bench/chaos/scrapes.py).

Exit status 1, with a list, if anything of this is violated:

    sent = right answers + documented errors; none wrong; none later than deadline + 1 s
    at least 95 % right, worker_lost below 0.1 %, never more than 5 s without a right answer
    every kind dies or stops at least 60 times in 600 s
    /metrics has every answer that came over HTTP, by status, and beyond them no more than broke
    afterwards no slot is claimed, lanes, descriptors, zombies and /dev/shm are as before
    every scrape is answered 200 and whole; no counter goes back or away, nobody who ended is
    told of
    SIGTERM ends it with exit status 0, and nothing in its log is a traceback
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from batchpool.client.control import ask_status
from bench.chaos.load import DEADLINE_S, GRACE_S, Account
from bench.chaos.scrapes import Scrapes
from bench.chaos.strikes import (
    BATCH_TIMEOUT_S,
    WORKERS,
    Chaos,
    Mortals,
    Record,
    is_alive,
    open_descriptors,
    zombies_of,
)
from bench.chaos.tagged import BEATS, Beats
from bench.support.machine import percentile, report
from bench.support.serving import Served, serving

# What a caller with a valid request may meet while processes die: README, "HTTP".
DOCUMENTED = ("deadline_exceeded", "worker_lost", "overloaded", "not_ready", "connection_lost")
RIGHT_SHARE = 0.95
LOST_SHARE = 0.001
GAP_S = 5.0
STRIKES_PER_S = 60 / 600
KINDS = ("worker", "batcher", "frontend", "client")
AFTERWARDS_S = 15.0
FLAGS = (
    *(
        "--devices",
        "cpu",
        "--workers-per-device",
        str(WORKERS),
        "--frontends",
        "2",
        "--max-batch",
        "16",
    ),
    *("--max-wait-ms", "2", "--batch-timeout-s", str(BATCH_TIMEOUT_S)),
)


# -- load ---------------------------------------------------------------------------------


def start_load(served: Served, rate: float, seconds: float) -> list[subprocess.Popen[str]]:
    shares = [
        ("http", str(served.port), rate / 2),
        ("async", served.socket, rate / 4),
        ("sync", served.socket, rate / 4),
    ]
    command = [sys.executable, "-m", "bench.chaos.load"]
    return [
        subprocess.Popen(
            [*command, kind, where, str(number), str(share), str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number, (kind, where, share) in enumerate(shares)
    ]


def account_of(process: subprocess.Popen[str]) -> Account:
    out, _ = process.communicate(timeout=60)
    if process.returncode:
        raise SystemExit(f"a load process ended with exit status {process.returncode}")
    told = json.loads(out)
    for name in ("outcomes", "retries", "answers"):
        told[name] = Counter(told[name])
    return Account(**{f.name: told[f.name] for f in fields(Account)})


def longest_gap_s(accounts: Sequence[Account]) -> float:
    """The longest time without a right answer, from the first request to the last."""
    times = sorted(t for account in accounts for t in account.right_at_s)
    start_s = min(account.started_s for account in accounts)
    end_s = max(account.ended_s for account in accounts)
    times = [start_s, *(t for t in times if start_s <= t <= end_s), end_s]
    return max(after - before for before, after in pairwise(times))


# -- what is left -------------------------------------------------------------------------


def resources(served: Served) -> dict[str, Any]:
    """The counts of resources that must be equal before and after the strikes."""
    status = ask_status(served.socket)
    found = {
        f"descriptors of {p['name']}": open_descriptors(p["pid"])
        for p in status["processes"]
        if p["pid"]
    }
    own = [name for name in os.listdir("/dev/shm") if name.startswith(f"batchpool.{served.pid}.")]
    return found | {
        "lanes": len(status["lanes"]),
        "slots claimed": sum(lane["claimed"] for lane in status["lanes"]),
        "zombies": zombies_of(served.pid),
        "names in /dev/shm": len(own),
    }


def await_resources(served: Served, before: dict[str, Any]) -> dict[str, Any]:
    """The holdings, once they are as before or time is up."""
    until_s = time.monotonic() + AFTERWARDS_S
    while True:
        after = resources(served)
        if after == before or time.monotonic() > until_s:
            return after
        time.sleep(0.1)


# -- the run ------------------------------------------------------------------------------


def run(
    seconds: float, rate: float, seed: int, kills_only: bool, scrapes_per_s: float
) -> tuple[dict[str, Any], list[str]]:
    """The table's rows and what was violated."""
    record, scraped = Record(), {}
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/log", "wb") as log:
        beats = f"{folder}/beats"
        os.mkdir(beats)
        with serving(["bench.chaos.tagged:Tagged"], *FLAGS, env={BEATS: beats}, log=log) as served:
            before = resources(served)
            scrapes = Scrapes(served.port, scrapes_per_s) if scrapes_per_s else None
            if scrapes is not None:
                scrapes.start()
            try:
                accounts = storm(served, Beats(beats), record, seconds, rate, seed, kills_only)
            finally:
                if scrapes is not None:
                    scrapes.end()
                    record.faults += scrapes.faults
                    scraped = scrapes.rows()
            after = await_resources(served, before)
            counted = http_requests(served.port)
            pids = served.pids()
            served.process.terminate()
            code = served.process.wait(60)
        said = Path(log.name).read_text(errors="replace")
    faults = record.faults + violations(accounts, record, seconds)
    faults += miscounted(accounts, counted)
    faults += [f"{what}: {before[what]} before, {n} after" for what, n in after.items()
               if before.get(what) != n]  # fmt: skip
    if code:
        faults.append(f"SIGTERM ended the pool with exit status {code}")
    faults += [f"{name} outlives the pool" for name, pid in pids.items() if is_alive(pid)]
    if "Traceback" in said:
        faults.append("the log has a traceback")
    if faults:
        print(said[-8000:], *record.events[-60:], sep="\n", file=sys.stderr)
        print(*(e for account in accounts for e in account.examples), sep="\n", file=sys.stderr)
    return {**table(accounts, record, after, counted), **scraped}, faults


def storm(
    served: Served,
    beats: Beats,
    record: Record,
    seconds: float,
    rate: float,
    seed: int,
    kills_only: bool,
) -> list[Account]:
    """Load and strikes at the same time."""
    rng = random.Random(seed)
    until_s = time.monotonic() + seconds
    load = start_load(served, rate, seconds)
    mortals = Mortals(served, random.Random(rng.random()), record, until_s)
    try:
        mortals.start()
        Chaos(served, beats, rng, record, kills_only=kills_only).run(until_s)
        mortals.join()
        return [account_of(process) for process in load]
    finally:
        for process in load:
            process.kill()
            process.wait()


def violations(accounts: Sequence[Account], record: Record, seconds: float) -> list[str]:
    outcomes = sum((account.outcomes for account in accounts), Counter[str]())
    sent = sum(account.sent for account in accounts)
    faults = []
    if sent != outcomes.total():
        faults.append(f"{sent} requests were sent and {outcomes.total()} ended")
    for code in sorted(set(outcomes) - {"right", *DOCUMENTED}):
        faults.append(f"{outcomes[code]} requests: {code}")
    if outcomes["right"] < RIGHT_SHARE * sent:
        faults.append(f"{outcomes['right']} right answers of {sent}")
    if outcomes["worker_lost"] >= LOST_SHARE * sent:
        faults.append(f"{outcomes['worker_lost']} worker_lost of {sent}")
    gap_s = longest_gap_s(accounts)
    if gap_s > GAP_S:
        faults.append(f"{gap_s:.2f} s without a right answer")
    for kind in KINDS:
        of = record.running if kind in ("worker", "batcher") else record.strikes
        if record.total(kind, of) < STRIKES_PER_S * seconds:
            faults.append(f"{kind}: struck only {record.total(kind, of)} times")
    return faults


def http_requests(port: int) -> Counter[str]:
    """The pool's own count of HTTP requests, on both paths: answers by status."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    counted: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "batchpool_http_requests_total":
                counted[sample.labels["code"]] += round(sample.value)
    return +counted


def miscounted(accounts: Sequence[Account], counted: Counter[str]) -> list[str]:
    """Where the pool's counts cannot be true.

    A front end counts a request just before it writes the answer. So every answer that a client
    has is counted, once, by its status; and beyond these at most one request for each that a
    client sent and got no answer to: answered when the connection broke, given up (499), or
    counted by a front end that was killed before it wrote. Without broken ones all is equal.
    """
    seen = sum((account.answers for account in accounts), Counter[str]())
    broken = sum(account.broken for account in accounts)
    faults = [
        f"{n} answers {status} came, /metrics has {counted[status]}"
        for status, n in sorted(seen.items())
        if counted[status] < n
    ]
    if not 0 <= counted.total() - seen.total() <= broken:
        faults.append(
            f"/metrics has {counted.total()} requests over HTTP; {seen.total()} were answered"
            f" and {broken} broke"
        )
    return faults


def table(
    accounts: Sequence[Account], record: Record, after: dict[str, Any], counted: Counter[str]
) -> dict[str, Any]:
    outcomes = sum((account.outcomes for account in accounts), Counter[str]())
    retries = sum((account.retries for account in accounts), Counter[str]())
    took = [t for account in accounts for t in account.took_s] or [0.0]
    rows: dict[str, Any] = {
        "requests sent": sum(account.sent for account in accounts),
        "of them http, async, sync": [account.sent for account in accounts],
    }
    answers = sum((account.answers for account in accounts), Counter[str]())
    for status in sorted(answers | counted):
        rows[f"http {status}: answers that came, in /metrics"] = [answers[status], counted[status]]
    rows["http requests sent that got no answer"] = sum(account.broken for account in accounts)
    rows |= {f"ended: {code}": n for code, n in outcomes.most_common()}
    rows |= {f"sent again after: {code}": n for code, n in retries.most_common()}
    rows |= {
        "right, share": round(outcomes["right"] / max(1, outcomes.total()), 5),
        "deadline, s; and grace of the clients, s": [DEADLINE_S, GRACE_S],
        "right answers p50, p99, most, ms": [
            round(1000 * percentile(took, share), 1) for share in (0.5, 0.99, 1.0)
        ],
        "longest time without a right answer, s": round(longest_gap_s(accounts), 2),
        "latest send behind its time, s": round(max(a.latest_send_s for a in accounts), 2),
    }
    for kind in KINDS:
        for (whose, way), n in sorted(record.strikes.items()):
            if whose == kind:
                running = record.running[kind, way]
                told = f"{kind}: {way}" + (" (rows RUNNING)" if running else "")
                rows[told] = [n, running] if running else n
    if record.found_s:
        rows["worker left stopped is dead after, s, most"] = round(max(record.found_s), 2)
    rows["all serve again after, s, most"] = round(max(record.recovery_s, default=0), 2)
    return rows | {f"afterwards: {what}": n for what, n in after.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--kills-only", action="store_true")
    parser.add_argument("--scrapes-per-s", type=float, default=0)
    parser.add_argument("--save")
    args = parser.parse_args()
    rows, faults = run(args.seconds, args.rate, args.seed, args.kills_only, args.scrapes_per_s)
    rows["seed"] = args.seed
    rows["violated"] = faults
    report(f"chaos for {args.seconds:g} s at {args.rate:g} requests/s", rows, args.save)
    for fault in faults:
        print(f"  VIOLATED: {fault}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
