"""Runs the mutations: which of them do the tests of their package notice?

    python -m tests.mutants [LIST ...] [--only TEXT] [--jobs 2] [--save FILE.json]

First every test that a mutation names runs as the code is, and must pass. Then each mutation runs
the test that it names. A mutation is noticed where that test fails, does not end in time, or cannot
import the module. The exit status is 0 if at least 95 % are noticed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.mutant import ROOT, Mutant, list_names, read_list
from tests.mutants.plugin import ENV

WANTED = 0.95
_TIMEOUT_S = 120.0
_NOTICED = (1, 2)  # pytest's exit statuses: a test failed; the tests could not be collected
_PYTEST = (sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")


def run_tests(tests: Sequence[str], mutant: str = "") -> tuple[int, str]:
    """pytest's exit status for these tests, -1 if they did not end in time, and what it printed."""
    env = dict(os.environ)
    if mutant:
        env[ENV] = mutant
    command = [*_PYTEST, "-p", "tests.mutants.plugin", *tests]
    try:
        run = subprocess.run(
            command,
            check=False,
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return -1, ""
    return run.returncode, run.stdout + run.stderr


def is_noticed(mutant: Mutant) -> bool:
    status, printed = run_tests([mutant.test], mutant.name)
    if status not in (0, -1, *_NOTICED):
        raise SystemExit(f"{mutant.name}: pytest ended with {status}:\n{printed[-2000:]}")
    return status != 0


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__.splitlines()[0]
    )
    parser.add_argument("lists", nargs="*", metavar="LIST", help=", ".join(list_names()))
    parser.add_argument("--only", default="", help="mutations whose file, name or test has this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    chosen = [
        mutant
        for name in args.lists or list_names()
        for mutant in read_list(name)
        if any(args.only in text for text in (mutant.file, mutant.name, mutant.test))
    ]
    if not chosen:
        raise SystemExit(f"no mutation has {args.only!r}")
    started_s = time.monotonic()
    status, printed = run_tests(sorted({mutant.test for mutant in chosen}))
    if status != 0:
        raise SystemExit(f"the tests fail without any mutation:\n{printed[-4000:]}")
    with ThreadPoolExecutor(args.jobs) as threads:
        noticed = dict(zip(chosen, threads.map(is_noticed, chosen), strict=True))
    rows: dict[str, dict[str, int]] = {}
    for mutant, seen in noticed.items():
        row = rows.setdefault(mutant.name.split()[0], {"mutations": 0, "noticed": 0})
        row["mutations"] += 1
        row["noticed"] += seen
        if not seen:
            print(f"NOT NOTICED  {mutant.name}: {mutant.file}\n  {mutant.old!r}\n  {mutant.new!r}")
            print(f"  by {mutant.test}")
    for name, row in rows.items():
        print(f"{name:<14} {row['noticed']:>4} of {row['mutations']:>4}")
    share = sum(noticed.values()) / len(noticed)
    took_s = round(time.monotonic() - started_s)
    print(f"{sum(noticed.values())} of {len(noticed)} noticed, {share:.1%}; {took_s} s")
    if args.save:
        args.save.write_text(json.dumps({"share": share, "lists": rows}, indent=1) + "\n")
    sys.exit(share < WANTED)


if __name__ == "__main__":
    main()
