"""`batchpool layout` and `batchpool config`, which need no running pool."""

from __future__ import annotations

import argparse
from dataclasses import replace

from batchpool.cli.reference import example_toml
from batchpool.core.config.flags import model_of, with_options


def layout(args: argparse.Namespace) -> int:
    from batchpool.core.layout.arena import arena_for
    from batchpool.core.layout.segments import lane_layout
    from batchpool.supervisor.plan.probe_model import probe_model
    from batchpool.supervisor.plan.slots import auto_slots

    model = replace(
        model_of(args.model, "model"), **({} if args.slots is None else {"slots": args.slots})
    )
    spec = probe_model(with_options([model], 0, [(0, each) for each in args.option])[0]).spec
    arena_bytes = model.input_arena_mib << 20
    slots = model.slots or auto_slots(spec, model.max_batch, arena_bytes)
    print(lane_layout(spec, slots, arena_for(spec, slots, arena_bytes)).drawing())
    return 0


def config(args: argparse.Namespace) -> int:
    print(example_toml(), end="")
    return 0
