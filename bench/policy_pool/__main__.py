"""The command line of `python -m bench.policy_pool`; what it is for stands in __init__.py."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import bench.policy_pool
from bench.policy_pool.findings import Findings, Settings, print_verdicts
from bench.policy_pool.parts import PARTS

_LIMIT_S = 510.0
_TIMES_MOST = 2.0  # the usual time of a part, and
_LONGER_S = 20.0  # that much: then it is given up
_CORES, _FEW_TIMES = 15, 4.0  # with fewer cores pools take turns
_LEAST_S = 20.0  # a part is not begun with less
_END_S = 15.0  # of a part, to end its processes


def run_here(name: str, folder: Path, settings: Settings) -> int:
    """One part in this process."""
    findings = Findings(name, folder)
    try:
        PARTS[name].run(findings, settings)
    except BaseException:
        findings.add("failed", traceback.format_exc().splitlines()[-12:])
        raise
    findings.end()
    return 0


def run_apart(name: str, args: argparse.Namespace, most_s: float) -> str:
    """One part in a process of its own; how it ended, or "" if well."""
    command = [sys.executable, "-m", "bench.policy_pool", name, "--out", str(args.out), "--here"]
    command += ["--times", f"{args.times:g}", "--device", args.device]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        status = process.wait(most_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # its pools end with it
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        return f"took longer than {most_s:.0f} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return f"ended with {status}" if status else ""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.policy_pool",
        description=bench.policy_pool.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="+", choices=("all", *PARTS), metavar="PART")
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--times", type=float, default=1.0, help="of every measuring time")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="of the MLP")
    parser.add_argument("--limit-s", type=float, default=_LIMIT_S, help="for all, about")
    parser.add_argument("--here", action="store_true", help="one part, in this process")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    names = list(PARTS) if "all" in args.parts else args.parts
    if args.here:
        sys.exit(run_here(names[0], args.out, Settings(args.times, args.device)))
    until_s = time.monotonic() + args.limit_s
    failed: dict[str, str] = {}
    for name in names:
        left_s = until_s - time.monotonic()
        if left_s < _LEAST_S:
            failed[name] = "no time was left"
            continue
        print(f"\n{name}, {left_s:.0f} s left", flush=True)
        usual_s = PARTS[name].usual_s * max(args.times, 0.5)
        if len(os.sched_getaffinity(0)) < _CORES:
            usual_s *= _FEW_TIMES
        why = run_apart(name, args, min(left_s, _TIMES_MOST * usual_s + _LONGER_S))
        if why:
            failed[name] = why
    holds = [print_verdicts(args.out / f"policy_pool_{name}.json") for name in names]
    for name, why in failed.items():
        print(f"\n{name} FAILED: {why}")
    print(f"\n{sum(holds)} of {len(names)} parts hold; saved in {args.out}")
    sys.exit(0 if all(holds) and not failed else 1)


if __name__ == "__main__":
    main()
