"""The command line of `python -m bench.peers`; what it is for stands in bench/peers/__init__.py."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

import bench.peers
from bench.machine import report
from bench.peers import family
from bench.peers.envs import DEFAULT, Envs, download
from bench.peers.roster import IN_TURNS, INSTALLED, MODELS, PEERS
from bench.peers.rounds import Wanted, loaded, run
from bench.peers.sweep import sweep_all
from bench.peers.table import markdown


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description=bench.peers.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--envs", type=Path, default=DEFAULT, help=f"default {DEFAULT}")
    verbs = parser.add_subparsers(dest="verb", required=True)

    setup = verbs.add_parser("setup", help="make the virtual environments")
    setup.add_argument("peers", nargs="*", metavar="PEER")
    setup.add_argument("--wheels", default="", help="install from this folder, without an index")
    setup.add_argument("--torch-here", action="store_true", help="use this interpreter's torch")

    wheels = verbs.add_parser("wheels", help="collect the wheels for another machine")
    wheels.add_argument("folder")
    wheels.add_argument("peers", nargs="*", metavar="PEER")

    sweep = verbs.add_parser("sweep", help="find the best settings")
    sweep.add_argument("peers", nargs="*", metavar="PEER")
    sweep.add_argument("--rounds", type=int, default=2)
    sweep.add_argument("--seconds", type=int, default=2)
    sweep.add_argument("--save", help="all that was tried, as JSON")

    rounds = verbs.add_parser("run", help="measure all in turns")
    rounds.add_argument("--peers", nargs="+", default=list(IN_TURNS), metavar="PEER")
    rounds.add_argument("--once", nargs="+", default=[], metavar="PEER")
    rounds.add_argument("--rounds", type=int, default=3)
    rounds.add_argument("--seconds", type=int, default=4, help="of a run of wrk")
    rounds.add_argument("--save", required=True)

    sweep.set_defaults(patience_s=10.0)
    rounds.set_defaults(patience_s=0.0)
    for measuring in (sweep, rounds):
        measuring.add_argument(
            "--patience-s",
            type=float,
            help="a run of wrk may take that much longer where others keep the machine busy",
        )
        measuring.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
        measuring.add_argument("--device", choices=("cpu", "cuda"), default="cpu")

    table = verbs.add_parser("table", help="a saved run as markdown")
    table.add_argument("file")
    return parser


def main() -> None:
    parser = _parser()
    args = parser.parse_args()
    named: list[str] = [*getattr(args, "peers", []), *getattr(args, "once", [])]
    allowed = INSTALLED if args.verb in ("setup", "wheels") else tuple(PEERS)
    if unknown := [name for name in named if name not in allowed]:
        parser.error(f"not one of {', '.join(allowed)}: {', '.join(unknown)}")
    envs = Envs(args.envs.expanduser().resolve())
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    if args.verb == "setup":
        sys.exit(not envs.setup(args.peers, args.wheels, args.torch_here))
    elif args.verb == "wheels":
        download(args.peers, args.folder)
    elif args.verb == "table":
        print(markdown(loaded(args.file)), end="")
    else:
        family.adopt_orphans()
        try:
            _measure(args, envs)
        except KeyboardInterrupt:
            sys.exit(130)


def _measure(args: argparse.Namespace, envs: Envs) -> None:
    if args.verb == "sweep":
        names = args.peers or [name for name in PEERS if PEERS[name].grid]
        tried = sweep_all(
            names, args.models, args.device, envs, args.rounds, args.seconds, args.patience_s
        )
        if args.save:
            rows: dict[str, Any] = {str(i): one for i, one in enumerate(tried)}
            report("Settings that were tried", rows, args.save)
        return
    wanted = Wanted(
        args.peers, args.once, args.models, args.device, args.rounds, args.seconds, args.patience_s
    )
    found = run(wanted, envs, lambda found: found.save(args.save))
    print("\n" + markdown(found))


def _leave(number: int, frame: object) -> None:
    """As Ctrl+C: whatever runs is ended on the way out."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
