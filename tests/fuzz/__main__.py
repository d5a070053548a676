"""Fuzz the request bodies: python -m tests.fuzz --bodies 1000000 --seed 1"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path

from tests.fuzz.run import fuzz

_MIB = 1 << 20
_MOST_GROWTH_MIB = 64  # of this process from a tenth of the bodies to the last one
_NOTES = 20


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / _MIB


def main() -> int:
    """Run it; exit status 1 for a wrong answer or for memory that grows."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--bodies", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--slow-road", action="store_true", help="through Starlette only")
    args = parser.parse_args()
    sizes, start_s = list[float](), time.monotonic()
    each = max(1, args.bodies // _NOTES)

    def look(done: int) -> None:
        if done % each == 0:
            sizes.append(_resident_mib())
            took_s = time.monotonic() - start_s
            print(f"{done} bodies, {done / took_s:.0f} a second, {sizes[-1]:.0f} MiB", flush=True)

    outcome = asyncio.run(fuzz(args.seed, args.bodies, fast=not args.slow_road, look=look))
    print(dict(sorted(outcome.kinds.items())))
    for failure in outcome.failures:
        print(failure)
    settled = sizes[len(sizes) // 10 :] or [0.0]
    growth = settled[-1] - settled[0]
    print(f"{len(outcome.failures)} wrong answers; memory grew by {growth:.0f} MiB")
    return 1 if outcome.failures or growth > _MOST_GROWTH_MIB else 0


if __name__ == "__main__":
    sys.exit(main())
