"""The pool beside a bare loop, both on 1 to all GPUs; then the pool over HTTP.

    python -m bench.scaling [--gpus 1,2,4] [--only mlp,resnet,encoder,http] [--profile]
                            [--heads differing|equal|both] [--save FILE.json]
    python -m bench.scaling --devices cpu --quick     # a smoke test without a GPU

Models: the MLP of the examples, ResNet-50 on uint8 images, a six-layer encoder. Of each, in turns:

    bare    the model alone, one process a GPU, all at once: pinned batches that stand ready, two
            streams, copy in, run, copy out
    infer   a pool and clients (several processes a GPU) that call Client.infer with 1024 rows, or
            256 images, with pinned=True
    submit, async   the MLP, one row a call, 256 calls under way in each client

and of the MLP over HTTP, raw bodies of 2 KiB on keep-alive connections: a closed loop (wrk where
it is installed, else our own), and an open one at a fixed rate, whose latencies count from the
intended times. Each request has a head of its own (bench/load/heads.py) unless told otherwise.
Every answer is compared with the bare model's, within what half precision blurs.

With more than two counts of GPUs those in between get the largest batches only. --profile tells how
much of a core each kind of process used, and how large batches were. Figures are saved after
each round; a model that fails is told of, and the others are measured all the same.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from batchpool.supervisor.plan.devices import gpu_count, visible_devices
from bench.load import heads as load_heads
from bench.scaling.figures import Clock, Figures
from bench.scaling.http import run_http
from bench.scaling.local import Settings, run_local
from bench.scaling.pool import cores

_PARTS = ("mlp", "resnet", "encoder", "http")
_LIMIT_S, _LIMIT_SEVERAL_S = 145.0, 285.0
_LEAST_S, _LEAST_SEVERAL_S = 28.0, 48.0  # kept for each part that is to come
_END_S = 6.0  # of a part, for ending its processes
_HANGS_S = 60.0  # beyond its time a part gets that much, and is then given up
_SENDERS_MOST = 32
_WARM_S = 0.4


class TookTooLong(Exception):
    """A part of the benchmark hangs, or is far behind."""


def numbers(text: str) -> tuple[int, ...]:
    found = tuple(int(part) for part in text.split(","))
    if min(found) < 1:
        raise argparse.ArgumentTypeError("positive numbers were expected")
    return found


def parts(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if not set(found) <= set(_PARTS):
        raise argparse.ArgumentTypeError(f"some of {', '.join(_PARTS)} were expected")
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--devices", choices=("gpu", "cpu"), default="gpu")
    add("--gpus", type=numbers, help="how many at a time; default: 1 to all")
    add("--only", type=parts, default=_PARTS)
    add("--rounds", type=int, default=3)
    add("--seconds", type=float, default=0.8, help="of one figure; bare loops take less")
    add("--batches", type=numbers, default=(1, 64, 256), help="of the bare loops")
    add("--max-batch", type=numbers, default=(256, 64), help="of the pools, the main one first")
    add("--clients", type=int, default=4, help="client processes for each GPU")
    add("--client-slots", type=int, default=4096, help="of each client; images take 1024")
    add("--frontends", type=int, default=max(1, min(16, cores() // 4)))
    add("--senders", type=int, default=max(1, min(_SENDERS_MOST, cores() // 2)))
    add("--connections", type=numbers, default=(256, 512))
    add("--rate", type=float, default=10_000, help="requests/s of the open loop")
    add("--load", choices=("auto", "wrk", "own"), default="auto", help="of the closed loop")
    load_heads.add_option(parser)
    add("--profile", action="store_true")
    add("--quick", action="store_true", help="tiny sizes, to see that it runs")
    add("--limit-s", type=float, help=f"time for all, about; {_LIMIT_S:g}, or with several GPUs"
        f" {_LIMIT_SEVERAL_S:g}")  # fmt: skip
    add("--save")
    return parser.parse_args()


def settings_of(args: argparse.Namespace) -> Settings:
    visible: list[str] = []
    if args.devices == "gpu":
        visible = visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"), gpu_count())
        if not visible:
            raise SystemExit("no GPU is visible here; --devices cpu --quick is the smoke test")
    counts = tuple(sorted(set(args.gpus or range(1, max(1, len(visible)) + 1))))
    if args.devices == "gpu" and counts[-1] > len(visible):
        raise SystemExit(f"--gpus {counts[-1]}: {len(visible)} are visible")
    wrk = args.load == "wrk" or (args.load == "auto" and shutil.which("wrk") is not None)
    quick = bool(args.quick)
    return Settings(
        devices=args.devices,
        visible=tuple(visible),
        counts=counts,
        batches=(1, 4, 8) if quick else args.batches,
        max_batches=(8, 4) if quick else args.max_batch,
        clients=2 if quick else args.clients,
        client_slots=args.client_slots,
        rounds=1 if quick else args.rounds,
        seconds=0.2 if quick else args.seconds,
        warm_s=0.05 if quick else _WARM_S,
        profile=args.profile,
        window=8 if quick else 0,
        rows=24 if quick else 0,
        frontends=1 if quick else args.frontends,
        senders=2 if quick else args.senders,
        connections=(8, 16) if quick else args.connections,
        rate_per_s=100.0 if quick else args.rate,
        wrk=wrk,
        heads=load_heads.kinds(args.heads),
    )


def give_up(_number: int, _frame: Any) -> None:
    raise TookTooLong("this part took too long and was given up")


def main() -> None:
    args = arguments()
    settings = settings_of(args)
    clock = Clock()
    figures = Figures(clock, args.save, "GPU" if settings.devices == "gpu" else "CPU worker")
    lone = settings.most == 1
    limit_s = args.limit_s or (_LIMIT_S if lone else _LIMIT_SEVERAL_S)
    least_s = _LEAST_S if lone else _LEAST_SEVERAL_S
    signal.signal(signal.SIGALRM, give_up)
    clock.say(f"{', '.join(args.only)} on {settings.counts} of {settings.visible or 'the CPU'}")
    for number, part in enumerate(args.only):
        run: Callable[[Settings, Figures, Clock], None]
        run = run_http if part == "http" else partial(run_local, part)
        to_come = len(args.only) - number - 1
        clock.rounds_until_s = limit_s - to_come * least_s - _END_S
        left_s = max(0.0, clock.rounds_until_s - clock.now_s())
        signal.setitimer(signal.ITIMER_REAL, left_s + _HANGS_S)
        try:
            run(settings, figures, clock)
        except Exception as exc:
            traceback.print_exc()
            figures.failed[part] = f"{type(exc).__name__}: {exc}"
            clock.say(f"{part}: FAILED, {exc}")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            figures.save()
    clock.say("done")
    figures.report()
    if figures.failed or figures.wrong:
        raise SystemExit(f"failed: {list(figures.failed)}, wrong answers: {figures.wrong}")


if __name__ == "__main__":
    main()
