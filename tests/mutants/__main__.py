"""Runs the mutations: which of them do the tests of their package notice?

    python -m tests.mutants [LIST ...] [--only TEXT] [--jobs 2] [--save FILE.json]

First every test that a mutation names runs as the code is, and must pass. Then each mutation runs
the test that it names. A mutation is noticed where that test fails, does not end in time, or cannot
import the module; those that only did not end in time are counted beside it, since a machine that
is very busy makes them too. The exit status is 0 if at least 95 % are noticed.
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
_LATE = -1  # in the place of an exit status
_COLUMNS = ("mutations", "noticed", "not in time")
_PYTEST = (sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")


def run_tests(
    tests: Sequence[str], mutant: str = "", timeout_s: float | None = None
) -> tuple[int, str]:
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
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return _LATE, ""
    return run.returncode, run.stderr[-1000:] + run.stdout


def tried(mutant: Mutant) -> int:
    """The exit status of the test that the mutation names: 0 where nothing was noticed."""
    status, printed = run_tests([mutant.test], mutant.name, _TIMEOUT_S)
    if status not in (0, _LATE, *_NOTICED):
        raise SystemExit(f"{mutant.name}: pytest ended with {status}:\n{printed[-2000:]}")
    if status == 0:
        print(f"NOT NOTICED  {mutant.name}: {mutant.file}\n  {mutant.old!r}\n  {mutant.new!r}")
        print(f"  by {mutant.test}", flush=True)
    return status


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
        statuses = dict(zip(chosen, threads.map(tried, chosen), strict=True))
    rows: dict[str, dict[str, int]] = {}
    for mutant, status in statuses.items():
        row = rows.setdefault(mutant.name.split()[0], dict.fromkeys(_COLUMNS, 0))
        row["mutations"] += 1
        row["noticed"] += status != 0
        row["not in time"] += status == _LATE
    for name, row in rows.items():
        late = f", {row['not in time']} not in time" if row["not in time"] else ""
        print(f"{name:<14} {row['noticed']:>4} of {row['mutations']:>4}{late}")
    noticed = sum(row["noticed"] for row in rows.values())
    share = noticed / len(chosen)
    took_s = round(time.monotonic() - started_s)
    print(f"{noticed} of {len(chosen)} noticed, {share:.1%}; {took_s} s")
    if args.save:
        args.save.write_text(json.dumps({"share": share, "lists": rows}, indent=1) + "\n")
    sys.exit(share < WANTED)


if __name__ == "__main__":
    main()
