"""Honest tagged load over HTTP and by local clients, alone and beside every hostile kind.

    python -m bench.hostile [--seconds 600] [--quiet-seconds 60] [--rate 200] [--only local|http]
        [--kinds NAME ...] [--uid 65534] [--save FILE.json]

A pool with two workers and two front ends gets `rate` requests per second, half of them over HTTP,
a quarter each from bp.AsyncClient and bp.Client; each has a tag of its own, and its answer is
checked whole. First they are alone for quiet-seconds, then beside hostile processes, one for each
kind of LOCAL_KINDS (`bench/hostile/local_kinds.py`), HTTP_KINDS (`bench/hostile/http_kinds.py`) and
STORE_KINDS (`bench/hostile/store_kinds.py`).
As root every second hostile process belongs to a user of its own (`uid` and below), the others to
the pool's own user, as far as a kind makes sense for him: whoever takes places or time is another
user, since root and the pool's user have no quota. Hostile processes run at the lowest priority of
the scheduler.

Then the requests are beside as many processes that use as much CPU time, in them and in the kernel,
and do nothing to the pool (`bench/hostile/control.py`): on a machine with few processors the
requests take longer beside these too. What hostile processes do through the pool is what takes
longer than that, and it is with these that p99 is compared.

Exit status 1, with a list, if anything of this is violated:

    every request is answered, and rightly
    p99 with hostility is at most twice that beside the same use of the machine, for HTTP and for
        local clients
    no process of the pool has ended
    no hostile process found what it must not be able to do
    afterwards no slot is claimed, lanes, descriptors and zombies are as before, memory within 10 %,
        but for the pages that SQLite keeps
    SIGTERM ends the pool with exit status 0, and nothing in its log is a traceback
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.chaos.load import MODEL
from bench.chaos.strikes import is_alive
from bench.chaos.tagged import BEATS
from bench.hostile.control import Used, controls, end_soon
from bench.hostile.http_kinds import HTTP_KINDS
from bench.hostile.local_kinds import LOCAL_KINDS
from bench.hostile.standing import Standing, grown, memory_curve, more, settled
from bench.hostile.store_kinds import STORE_KINDS
from bench.support.machine import percentile, report
from bench.support.serving import Served, serving

SENDERS = (("http", 0.5), ("async", 0.25), ("sync", 0.25))
FOR_OTHER_USERS = ("never_attaches", "takes_every_place", "asks_without_end", "comes_and_goes")
# Of a front end pyarrow, of the task process its lane.
BRINGS_WHAT_STAYS = ("announces_columns", "submits_and_takes_back", "makes_batches_of_noise")
_CONTROL_LEAST_S = 10.0
SLOWER_MOST = 2.0
FLAGS = (
    "--devices", "cpu", "--workers-per-device", "2", "--frontends", "2", "--max-wait-ms", "2",
    "--client-slots", "256", "--drain-s", "10", "--tasks", "--batches",
)  # fmt: skip


@dataclass(frozen=True)
class Phase:
    """The outcomes of the requests of one phase. took_s: of right answers, by kind of sender."""

    sent: int
    outcomes: dict[str, int]
    took_s: dict[str, list[float]]
    examples: list[str]

    def p99_ms(self, road: str) -> float:
        """The 99th percentile of the answers over "http" or to "local" clients, in ms."""
        took = [
            s for kind, all_s in self.took_s.items() if (kind == "http") == (road == "http")
            for s in all_s
        ]  # fmt: skip
        return round(percentile(sorted(took), 0.99) * 1000, 2) if took else 0.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run both phases; returns the exit status."""
    args = _arguments(argv)
    kinds = {"local": LOCAL_KINDS, "http": {**HTTP_KINDS, **STORE_KINDS}}
    names = [name for road, all_of in kinds.items() if args.only in (None, road) for name in all_of]
    names = args.kinds or names
    with tempfile.TemporaryDirectory(prefix="bp-") as folder:
        os.chmod(folder, 0o755)
        log = Path(folder) / "log"
        with (
            open(log, "wb") as sink,
            serving(
                ["bench.chaos.tagged:Tagged"],
                *FLAGS,
                "--state-dir",
                f"{folder}/state",
                env={BEATS: folder},
                log=sink,
            ) as served,
        ):
            os.chmod(os.path.dirname(served.socket), 0o755)
            os.chmod(served.socket, 0o666)
            _send(served, 5, args.rate)  # so that everything is there that stays
            for _ in range(8):  # of each front end: on a GPU machine it loads NVML for the first
                urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics").read()
            for name in BRINGS_WHAT_STAYS:
                STORE_KINDS[name](str(served.port), MODEL)
            before = Standing.of(served)
            quiet = _send(served, args.quiet_seconds, args.rate)
            with (
                hostile(served, names, args.uid) as strangers,
                memory_curve(served, args.seconds) as curve,
            ):
                loud = _send(served, args.seconds, args.rate)
            after = settled(served, before)
            quiet_s = min(args.seconds, max(args.quiet_seconds, _CONTROL_LEAST_S))
            with controls(strangers.used, strangers.seconds) as control_s:
                busy = _send(served, quiet_s, args.rate)
        text = log.read_text(errors="replace")
        violations = [
            *_of_phases(quiet, loud, busy),
            *_of_pool(before, after, served),
            *_of_strangers(strangers.accounts),
            *(["a traceback in the log"] if "Traceback" in text else []),
        ]
        if violations:
            print(text[-6000:], file=sys.stderr)
    shares = {
        "strangers": sum(each.user_s + each.system_s for each in strangers.used)
        / strangers.seconds,
        "control": sum(control_s) / quiet_s,
    }
    rows = {
        **_latencies(quiet, loud, busy),
        "processors used by them": {name: round(share, 2) for name, share in shares.items()},
        "private memory beside strangers, MiB, at equal times": curve,
    }
    _report(args, quiet, loud, before, after, strangers.accounts, violations, rows)
    return 1 if violations else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.hostile")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--quiet-seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--only", choices=("local", "http"))
    parser.add_argument("--kinds", nargs="+", choices=[*LOCAL_KINDS, *HTTP_KINDS, *STORE_KINDS])
    parser.add_argument("--uid", type=int, default=65534)
    parser.add_argument("--save")
    return parser.parse_args(argv)


# -- honest load -----------------------------------------------------------------------------


def _send(served: Served, seconds: float, rate: float) -> Phase:
    """Send tagged requests of every kind of sender at once."""
    command = [sys.executable, "-m", "bench.chaos.load"]
    senders = []
    for number, (kind, share) in enumerate(SENDERS):
        where = str(served.port) if kind == "http" else served.socket
        words = [kind, where, str(number), str(rate * share), str(seconds)]
        senders.append((kind, subprocess.Popen([*command, *words], stdout=subprocess.PIPE)))
    sent, outcomes, took, examples = 0, dict[str, int](), dict[str, list[float]](), list[str]()
    for kind, process in senders:
        out, _ = process.communicate(timeout=seconds + 60)
        account: dict[str, Any] = json.loads(out)
        sent += account["sent"]
        for outcome, n in account["outcomes"].items():
            outcomes[outcome] = outcomes.get(outcome, 0) + n
        took[kind] = account["took_s"]
        examples += account["examples"]
    return Phase(sent, outcomes, took, examples[:20])


# -- hostility -------------------------------------------------------------------------------


@dataclass
class Strangers:
    """Hostile processes. accounts: their own. used: the CPU time of each, in so many seconds."""

    accounts: list[dict[str, Any]] = field(default_factory=list)
    used: list[Used] = field(default_factory=list)
    seconds: float = 0.0


@contextlib.contextmanager
def hostile(served: Served, names: Sequence[str], uid: int) -> Iterator[Strangers]:
    """One process of each kind; what they have done and used is known afterwards."""
    strangers = Strangers()
    processes = []
    for number, name in enumerate(names):
        where = served.socket if name in LOCAL_KINDS else str(served.port)
        words = [name, where, MODEL]
        if os.getuid() == 0 and (number % 2 or name in FOR_OTHER_USERS):
            words.append(str(uid - number))
        elif name in FOR_OTHER_USERS:
            continue  # for the pool's own user there is no quota
        processes.append(
            (name, subprocess.Popen(
                [sys.executable, "-m", "bench.hostile.stranger", *words],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            ))
        )  # fmt: skip
    for _, process in processes:
        assert process.stdout is not None
        process.stdout.readline()  # it has begun
    begun_s, before = time.monotonic(), [Used.of(process.pid) for _, process in processes]
    try:
        yield strangers
    finally:
        strangers.seconds = time.monotonic() - begun_s
        for (_, process), then in zip(processes, before, strict=True):
            if process.poll() is None:
                strangers.used.append(Used.of(process.pid).since(then))
        end_soon([process for _, process in processes])
        for name, process in processes:
            try:
                out, _ = process.communicate(timeout=60)
                account = json.loads(out.splitlines()[-1])
                strangers.accounts.append({**account, "status": process.returncode})
            except (subprocess.TimeoutExpired, ValueError, IndexError):
                process.kill()
                process.wait()
                strangers.accounts.append({"kind": name, "status": process.returncode})


# -- the verdict -----------------------------------------------------------------------------


def _of_phases(quiet: Phase, loud: Phase, busy: Phase) -> Iterator[str]:
    for name, phase in (("alone", quiet), ("beside strangers", loud), ("beside control", busy)):
        bad = {k: n for k, n in phase.outcomes.items() if k != "right"}
        if bad or phase.outcomes.get("right", 0) != phase.sent:
            yield f"{name}: of {phase.sent} requests {bad or 'some were not accounted for'}"
    for road in ("http", "local"):
        control, beside = max(busy.p99_ms(road), quiet.p99_ms(road)), loud.p99_ms(road)
        if beside > SLOWER_MOST * control:
            yield f"p99 {road}: {beside} ms beside strangers, {control} ms beside the control"


def _of_pool(before: Standing, after: Standing, served: Served) -> Iterator[str]:
    if after.pids != before.pids:
        yield f"processes: {before.pids} before, {after.pids} after"
    if (after.lanes, after.claimed, after.zombies) != (before.lanes, 0, 0):
        yield f"{after.lanes} lanes, {after.claimed} slots claimed, {after.zombies} zombies"
    if held := more(before.descriptors, after.descriptors):
        yield f"descriptors: {before.descriptors} before, {held} after"
    for name, mib in grown(before.rss_mib, after.rss_mib).items():
        yield f"memory of {name}: {before.rss_mib[name]} MiB before, {mib} MiB after"
    if is_alive(served.pid) or served.process.returncode != 0:
        yield f"the pool ended with status {served.process.returncode}"


def _of_strangers(accounts: Sequence[dict[str, Any]]) -> Iterator[str]:
    for account in accounts:
        if account["status"] != 0 or not account["rounds"]:
            yield f"stranger: {account}"


def _latencies(quiet: Phase, loud: Phase, busy: Phase) -> dict[str, Any]:
    return {
        f"p99 {road}, ms: alone, beside the control, beside strangers": [
            phase.p99_ms(road) for phase in (quiet, busy, loud)
        ]
        for road in ("http", "local")
    }


def _report(
    args: argparse.Namespace,
    quiet: Phase,
    loud: Phase,
    before: Standing,
    after: Standing,
    accounts: Sequence[dict[str, Any]],
    violations: Sequence[str],
    more_rows: dict[str, Any],
) -> None:
    rows: dict[str, Any] = {
        "requests alone": quiet.outcomes,
        "requests beside strangers": loud.outcomes,
        "examples": loud.examples,
    }
    rows |= more_rows
    rows |= {
        "processes ended": sum(after.pids.get(n) != pid for n, pid in before.pids.items()),
        "descriptors before": before.descriptors,
        "descriptors after": after.descriptors,
        "private memory before, MiB": before.rss_mib,
        "private memory after, MiB": after.rss_mib,
        "strangers": list(accounts),
        "violated": list(violations) or "nothing",
    }
    title = f"{args.rate:g} requests/s beside {len(accounts)} hostile processes, {args.seconds:g} s"
    report(title, rows, args.save)


if __name__ == "__main__":
    sys.exit(main())
