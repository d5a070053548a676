"""CPU time of one HTTP request in each process of the pool, under the load of wrk.

    python -m bench.process_cost [--connections 64 256] [--rounds 3] [--seconds 3]
                                 [--heads differing|equal|both] [--save F.json]

Raw bodies of 2 KB to y = 2x + 1, one front end and one worker. The CPU time is the scheduler's own
of all threads, so that what other processes take from the cores counts less than it does in the
rate; but where the caches are full of others' code and data, a request costs more. Run it in a
checkout after `make compile` and in one without, in turns, to see what that gains.
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from bench.http import need_wrk, raw_question, run_wrk
from bench.load import heads as load_heads
from bench.support.machine import report, spread
from bench.support.serving import serving


def ran_ns(pid: int) -> int:
    """CPU time of a process's threads."""
    ran = 0
    for stat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            ran += int(stat.read_text().split()[0])
        except OSError:  # the thread has ended
            continue
    return ran


def costs(
    connections: Iterable[int], rounds: int, seconds: int, kinds: Iterable[str]
) -> dict[str, list[float]]:
    """Figures of each round by what they are of; the first round of each load warms up."""
    found: dict[str, list[float]] = defaultdict(list)
    flags = ("--frontends", "1", "--devices", "cpu", "--max-batch", "256", "--max-wait-ms", "0")
    with serving(["bench.support.models:Affine"], *flags) as pool:
        question = raw_question(pool.port)
        pids = {name: pid for name, pid in pool.pids().items() if name != "supervisor"}
        for n, turn, heads in itertools.product(connections, range(rounds + 1), kinds):
            before = {name: ran_ns(pid) for name, pid in pids.items()}
            load = run_wrk(*question, n, seconds, heads)
            spent_ns = {name: ran_ns(pid) - before[name] for name, pid in pids.items()}
            us = {name: ns / load["right"] / 1e3 for name, ns in spent_ns.items()}
            if turn:
                of = f"{n} connections, {heads} heads"
                found[f"{of}: requests/s"].append(load["rate"])
                found[f"{of}: us a request"].append(sum(us.values()))
                for name, spent_us in us.items():
                    found[f"{of}: us a request, {name}"].append(spent_us)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3)
    load_heads.add_option(parser)
    parser.add_argument("--save")
    args = parser.parse_args()
    need_wrk()
    found = costs(args.connections, args.rounds, args.seconds, load_heads.kinds(args.heads))
    rows = {what: spread(figures, 1) for what, figures in found.items()}
    report("one raw request of 2 KB over HTTP", rows, args.save)


if __name__ == "__main__":
    main()
