"""The longest turns of a front end's event loop beside each kind of hostile HTTP caller.

    python -m bench.hostile.turns [--seconds 4] [--kinds NAME ...] [--stacks-s S] [--save FILE.json]

One pool with one front end; each kind is beside it alone, for so many seconds. What is told is how
long the loop was held by its own process (`bench/hostile/instrument/sitecustomize.py`), so that
other programs of the machine do not count, and the CPU time of it; one may hold a few short turns
that follow each other within a millisecond. Beside each kind a caller asks for one small request
after another, as others do.
--stacks-s: prints what the front end did in turns that took longer, by the clock.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.chaos.load import MODEL
from bench.chaos.tagged import BEATS
from bench.hostile.__main__ import FLAGS, hostile
from bench.hostile.http_connection import connected, infer_body, infer_path, message
from bench.hostile.http_kinds import HTTP_KINDS
from bench.hostile.instrument.sitecustomize import FOLDER, LEAST_S, STACKS_S
from bench.hostile.store_kinds import STORE_KINDS
from bench.support.machine import report
from bench.support.serving import Served, serving

_INSTRUMENT = Path(__file__).parent / "instrument"
_PROCESSES = {"frontend 0": "front end", "tasks": "task process"}
_NOBODY = "nobody"


def main(argv: Sequence[str] | None = None) -> int:
    """Run every kind alone; returns the exit status."""
    kinds = {**HTTP_KINDS, **STORE_KINDS}
    parser = argparse.ArgumentParser(prog="python -m bench.hostile.turns")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=list(kinds))
    parser.add_argument("--stacks-s", type=float, default=0)
    parser.add_argument("--save")
    args = parser.parse_args(argv)
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bp-") as folder:
        turns = Path(folder) / "turns"
        turns.mkdir()
        env = {BEATS: folder, FOLDER: str(turns), "PYTHONPATH": str(_INSTRUMENT)}
        if args.stacks_s:
            env[STACKS_S] = str(args.stacks_s)
        flags = [*FLAGS, "--frontends", "1", "--state-dir", f"{folder}/state"]
        with serving(["bench.chaos.tagged:Tagged"], *flags, env=env) as served:
            os.chmod(os.path.dirname(served.socket), 0o755)
            for name in (_NOBODY, *args.kinds):
                rows[name] = _beside(served, turns, name, args.seconds)
                print(f"  {name:<36} {rows[name]}", flush=True)
        if args.stacks_s:
            for path in turns.glob("*.stacks"):
                print(path.read_text(), file=sys.stderr)
    report(f"turns from {LEAST_S * 1000:g} ms on of loops, in ms", rows, args.save)
    return 0


def _beside(served: Served, turns: Path, name: str, seconds: float) -> dict[str, Any]:
    """The turns beside one kind: longest, and their number and sum."""
    begun_s = time.monotonic()
    ends = threading.Event()
    asking = threading.Thread(target=_ask, args=(str(served.port), ends))
    asking.start()
    with hostile(served, [] if name == _NOBODY else [name], 65534):
        time.sleep(seconds)
    ends.set()
    asking.join()
    ended_s = time.monotonic()
    found = {}
    pids = served.pids()
    for process, label in _PROCESSES.items():
        lines = (turns / str(pids[process])).read_text().splitlines()
        turns_of = [tuple(map(float, line.split())) for line in lines]
        held = [(held_s, cpu_s) for at_s, held_s, cpu_s in turns_of if begun_s < at_s <= ended_s]
        found[label] = {
            "longest": round(max((each for each, _ in held), default=0) * 1000, 1),
            "longest by the loop's own CPU": round(
                max((cpu_s for _, cpu_s in held), default=0) * 1000, 1
            ),
            "number": len(held),
            "sum": round(sum(each for each, _ in held) * 1000),
        }
    return found


def _ask(port: str, ends: threading.Event) -> None:
    """One small request after another."""
    sent = message(infer_path(MODEL), infer_body(port, MODEL))
    while not ends.is_set():
        with suppress(OSError), connected(port) as sock:
            sock.settimeout(30)
            while not ends.is_set():
                sock.sendall(sent)
                if not sock.recv(65536):
                    break


if __name__ == "__main__":
    sys.exit(main())
