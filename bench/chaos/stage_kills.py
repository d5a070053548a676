"""The processes of all three stages of a model killed one after the other under tagged load.

    python -m bench.chaos.stage_kills [--kills 200] [--rate 60] [--seed N] [--save FILE.json]

Two processes run each of preprocess, infer and postprocess. The load is that of bench.chaos: half
of it over HTTP, the rest from bp.AsyncClient and bp.Client. The stages take turns; of the stage
whose turn it is one process, chosen at random, gets SIGKILL while a batch runs in it, as soon as
all processes are warm again after the last kill.

Exit status 1, with a list, if anything of this is violated:

    sent = right answers + documented errors; none wrong, none unanswered
    at least 99 % right
    as many kills as were asked for, in each stage the same number but for one
    afterwards no slot is claimed, and SIGTERM ends the pool with exit status 0
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from itertools import cycle
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from batchpool.client.control import ask_status
from bench.chaos.__main__ import DOCUMENTED, account_of, start_load
from bench.chaos.load import Account
from bench.chaos.tagged import BEATS, Beats
from bench.support.machine import percentile, report
from bench.support.serving import Served, serving

PROCESSES = 2  # of each stage
STAGES = {"preprocess": "preprocess", "infer": "worker", "postprocess": "postprocess"}
RIGHT_SHARE = 0.99
ROUND_S = 20.0  # of load; rounds follow each other until the kills are done
_LOOK_S, _RUNNING_WITHIN_S, _WARM_WITHIN_S = 0.0005, 2.0, 60.0
FLAGS = (
    *("--devices", "cpu", "--workers-per-device", str(PROCESSES), "--frontends", "2"),
    *("--preprocess-workers", str(PROCESSES), "--postprocess-workers", str(PROCESSES)),
    *("--max-batch", "16", "--max-wait-ms", "2"),
)


class StageKills(threading.Thread):
    """SIGKILL to processes of all stages in turn. kills, running: by stage, all and those that
    came while a batch ran. restarts_s: until all were warm again. fault: why it ended early."""

    def __init__(self, served: Served, beats: Beats, rng: random.Random, wanted: int) -> None:
        super().__init__()
        self.kills: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self.restarts_s: list[float] = []
        self.fault = ""
        self._served, self._beats, self._rng, self._wanted = served, beats, rng, wanted

    def run(self) -> None:
        for stage in cycle(STAGES):
            if self.kills.total() == self._wanted:
                return
            self._strike(stage)
            begun_s = time.monotonic()
            while not all_warm(self._served):
                if time.monotonic() > begun_s + _WARM_WITHIN_S:
                    self.fault = f"not all warm {_WARM_WITHIN_S:g} s after a kill of {stage}"
                    return
                time.sleep(0.02)
            self.restarts_s.append(time.monotonic() - begun_s)

    def _strike(self, stage: str) -> None:
        name = f"{STAGES[stage]} {self._rng.randrange(PROCESSES)} of tagged"
        pid = self._served.pids()[name]
        until_s = time.monotonic() + _RUNNING_WITHIN_S
        while not (runs := self._beats.read(pid) % 2 == 1) and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        os.kill(pid, signal.SIGKILL)
        self.kills[stage] += 1
        self.running[stage] += runs
        while self._served.pids().get(name) == pid:
            time.sleep(0.005)


def all_warm(served: Served) -> bool:
    stages = ask_status(served.socket)["models"]["tagged"]["stages"]
    return all(stages[stage]["workers"] == f"{PROCESSES}/{PROCESSES}" for stage in STAGES)


def run_again(port: int) -> dict[str, int]:
    """The rows that ran again after the death of their worker, by stage, from /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    samples = (s for family in text_string_to_metric_families(text) for s in family.samples)
    return {
        sample.labels["stage"]: round(sample.value)
        for sample in samples
        if sample.name == "batchpool_rows_retried_total"
        and sample.labels["reason"] == "worker_lost"
    }


def run(kills: int, rate: float, seed: int) -> tuple[dict[str, Any], list[str]]:
    """The table's rows and what was violated."""
    accounts: list[Account] = []
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/log", "wb") as log:
        beats = f"{folder}/beats"
        os.mkdir(beats)
        models = ["bench.chaos.tagged_stages:TaggedStages"]
        with serving(models, *FLAGS, env={BEATS: beats}, log=log) as served:
            strikes = StageKills(served, Beats(beats), random.Random(seed), kills)
            strikes.start()
            while strikes.is_alive():
                load = start_load(served, rate, ROUND_S)
                try:
                    accounts += [account_of(process) for process in load]
                finally:
                    for process in load:
                        process.kill()
                        process.wait()
            strikes.join()
            again = run_again(served.port)
            claimed = sum(lane["claimed"] for lane in ask_status(served.socket)["lanes"])
            served.process.terminate()
            code = served.process.wait(60)
        said = Path(log.name).read_text(errors="replace")
    outcomes = sum((account.outcomes for account in accounts), Counter[str]())
    sent = sum(account.sent for account in accounts)
    faults = [strikes.fault] * bool(strikes.fault)
    if sent != outcomes.total():
        faults.append(f"{sent} requests were sent and {outcomes.total()} ended")
    faults += [f"{outcomes[c]} requests: {c}" for c in sorted({*outcomes} - {"right", *DOCUMENTED})]
    if outcomes["right"] < RIGHT_SHARE * sent:
        faults.append(f"{outcomes['right']} right answers of {sent}")
    if (
        strikes.kills.total() != kills
        or max(strikes.kills.values()) - min(strikes.kills[stage] for stage in STAGES) > 1
    ):
        faults.append(f"killed {dict(strikes.kills)}, {kills} were asked for")
    if claimed:
        faults.append(f"{claimed} slots are claimed afterwards")
    if code:
        faults.append(f"SIGTERM ended the pool with exit status {code}")
    if faults:
        print(said[-8000:], file=sys.stderr)
        print(*(e for account in accounts for e in account.examples), sep="\n", file=sys.stderr)
    return table(accounts, strikes, again), faults


def table(accounts: list[Account], strikes: StageKills, again: dict[str, int]) -> dict[str, Any]:
    outcomes = sum((account.outcomes for account in accounts), Counter[str]())
    retries = sum((account.retries for account in accounts), Counter[str]())
    took = [t for account in accounts for t in account.took_s] or [0.0]
    return {
        "kills": strikes.kills.total(),
        **{
            f"{stage}: kills, while a batch ran, rows run again": [
                strikes.kills[stage], strikes.running[stage], again.get(stage, 0),
            ]
            for stage in STAGES
        },
        "all warm again after p50, most, s": [
            round(percentile(strikes.restarts_s or [0.0], share), 2) for share in (0.5, 1.0)
        ],
        "requests sent": sum(account.sent for account in accounts),
        **{f"ended: {code}": n for code, n in outcomes.most_common()},
        **{f"sent again after: {code}": n for code, n in retries.most_common()},
        "right answers p50, p99, most, ms": [
            round(1000 * percentile(took, share), 1) for share in (0.5, 0.99, 1.0)
        ],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--rate", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--save")
    args = parser.parse_args()
    rows, faults = run(args.kills, args.rate, args.seed)
    rows["seed"] = args.seed
    rows["violated"] = faults
    report(f"{args.kills} kills in three stages at {args.rate:g} requests/s", rows, args.save)
    for fault in faults:
        print(f"  VIOLATED: {fault}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
