"""The command line of `python -m bench.peers`; what it is for stands in bench/peers/__init__.py."""

from __future__ import annotations

import argparse
import resource
import signal
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import bench.peers
from bench.load import heads as load_heads
from bench.peers import family, short
from bench.peers.envs import DEFAULT, Envs
from bench.peers.roster import IN_TURNS, INSTALLED, MODELS, PEERS
from bench.peers.rounds import Wanted, loaded, run
from bench.peers.sites import collect, unpacked
from bench.peers.split import Split, usual
from bench.peers.stage import Stage
from bench.peers.sweep import sweep_all
from bench.peers.table import markdown
from bench.support.machine import report

_FILES = 1 << 16


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

    wheels = verbs.add_parser("wheels", help="collect wheels, and wrk, for another machine")
    wheels.add_argument("folder", type=Path)
    wheels.add_argument("--python", default="3.12", help="of that machine")
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

    brief = verbs.add_parser("short", help="sweep and measure within a time")
    brief.add_argument("--peers", nargs="+", default=["batchpool", "mosec", "litserve"])
    brief.add_argument("--model", choices=MODELS, default="mlp")
    brief.add_argument("--connections", nargs="+", type=int, default=[64, 256, 1024, 4096])
    brief.add_argument("--swept", nargs="+", type=int, default=[64, 256, 1024], help="of the sweep")
    brief.add_argument("--rounds", type=int, default=3, help="at most")
    brief.add_argument("--seconds", type=int, default=2, help="of a run of wrk in a round")
    brief.add_argument("--offered", type=float, default=10_000, help="requests/s of the open loop")
    brief.add_argument("--limit-s", type=float, default=490.0)
    share = short.SWEEP_SHARE
    brief.add_argument("--sweep-share", type=float, default=share, help="of that, for the sweep")
    brief.add_argument("--out", type=Path, required=True, help="folder")

    for measuring in (sweep, rounds, brief):
        measuring.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
        load_heads.add_option(measuring, both=measuring is not sweep)
        measuring.add_argument("--sites", type=Path, help="folders of wheels for environments")
        measuring.add_argument("--wrk-threads", type=int, default=usual().threads)
        measuring.add_argument(
            "--pin",
            choices=("yes", "no", "auto") if measuring is brief else ("yes", "no"),
            default="auto" if measuring is brief else "no",
            help="wrk to as many cores as it has threads, the servers to the others",
        )
    sweep.set_defaults(patience_s=10.0)
    rounds.set_defaults(patience_s=0.0)
    for measuring in (sweep, rounds):
        measuring.add_argument(
            "--patience-s",
            type=float,
            help="a run of wrk may take that much longer where others keep the machine busy",
        )
        measuring.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))

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
        sys.exit(not envs.setup(args.peers))
    elif args.verb == "wheels":
        collect(args.peers, args.folder, args.python)
    elif args.verb == "table":
        print(markdown(loaded(args.file)), end="")
    else:
        family.adopt_orphans()
        _allow_files()
        try:
            with unpacked(args.sites) if args.sites else nullcontext(envs) as envs:
                _measure(args, envs)
        except KeyboardInterrupt:
            sys.exit(130)


def _measure(args: argparse.Namespace, envs: Envs) -> None:
    split = Split(args.wrk_threads, args.pin == "yes")
    stage = Stage(args.device, envs, split, heads=load_heads.kinds(args.heads))
    if args.verb == "short":
        wanted = short.Wanted(
            peers=args.peers,
            model=args.model,
            device=args.device,
            connections=args.connections,
            swept=args.swept,
            seconds=args.seconds,
            rounds=args.rounds,
            offered_per_s=args.offered,
            pin=args.pin,
            limit_s=args.limit_s,
            sweep_share=args.sweep_share,
        )
        print("\n" + markdown(short.short(wanted, stage, args.out)))
        return
    stage = replace(stage, patience_s=args.patience_s)
    if args.verb == "sweep":
        names = args.peers or [name for name in PEERS if PEERS[name].grid]
        tried = sweep_all(stage, names, args.models, args.rounds, args.seconds)
        if args.save:
            rows: dict[str, Any] = {str(i): one for i, one in enumerate(tried)}
            report("Settings that were tried", rows, args.save)
        return
    asked = args.peers, args.once, args.models, args.device
    found = run(
        Wanted(*asked, args.rounds, args.seconds, args.patience_s),
        stage,
        lambda found: found.save(args.save),
    )
    print("\n" + markdown(found))


def _allow_files() -> None:
    """As many as may be open, and enough for all connections where we may say so."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    enough = max(most, _FILES)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, enough))
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _leave(number: int, frame: object) -> None:
    """As Ctrl+C: whatever runs is ended on the way out."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
