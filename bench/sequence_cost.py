"""The cost of one step of a generator's worker beside the generator itself, without a pool.

    python -m bench.sequence_cost [--sequences 16,64,256] [--lanes 2] [--tokens 1] [--steps 400]
                                  [--save FILE.json]

A real loop with real lanes and records in one process, and a generator whose `step` returns the
same arrays again and again, so that all that is measured is the loop's own: the checks, the stores
into the lanes, cancel words and deadlines, bells and metrics. CPU time of this process in us a
step; the rounds of all sizes are in turns. The tokens of every lane are checked at the end.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import batchpool as bp
from batchpool.core.layout.segments import Layout, lane_layout, worker_layout_of
from batchpool.core.scheduler.limits import NEVER_NS
from batchpool.model import spec_of
from batchpool.shm.batch_record import write_record
from batchpool.shm.doorbell import Doorbell
from batchpool.shm.lane import Lane
from batchpool.shm.segment import Segment, create, map_checked
from batchpool.shm.worker_segment import WorkerSegment
from batchpool.worker.sequence_loop import SequenceLoop
from bench.support.machine import report, spread

_ROUNDS = 5


class _Counting(bp.Generator):
    """Makes its sequences' numbers as tokens; costs nothing."""

    framework = "numpy"
    prompt = bp.Tensor("prompt", "int32", (bp.Dim(max=16),))

    def __init__(self, sequences: int, tokens: int, most: int) -> None:
        self.sequences, self.max_tokens = sequences, most
        numbers = np.arange(sequences)
        counts = np.full(sequences, tokens) if tokens > 1 else None
        self._made = bp.StepTokens(numbers, np.repeat(numbers, tokens), counts)

    def join(self, sequences: Sequence[bp.JoiningSequence]) -> None:
        pass

    def step(self) -> bp.StepTokens:
        return self._made

    def leave(self, numbers: Sequence[int]) -> None:
        pass


class _Scene:
    """One loop all of whose sequences run."""

    def __init__(self, sequences: int, lanes: int, tokens: int, steps: int) -> None:
        self._tokens = tokens
        generator = _Counting(sequences, tokens, (steps * _ROUNDS + 1) * tokens + 1)
        spec = spec_of(generator)
        layout = worker_layout_of(spec, sequences, lanes)
        segment = WorkerSegment(_mapped(layout), layout)
        self._loop = SequenceLoop(spec, segment, generator, lambda: None, time.monotonic_ns)
        own = lane_layout(spec, sequences)
        self._lanes = [Lane(spec, _mapped(own), own) for _ in range(lanes)]
        for number, lane in enumerate(self._lanes):
            lane.input_sizes[:] = 8
            lane.parameters["max_tokens"].values[:] = generator.max_tokens
            self._loop.add_lane(number, 1, lane, Doorbell())
        ring = segment.sq_producer()
        for record in range(sequences):
            tickets = np.array([[record % lanes], [record], [1]], dtype=np.int64)
            reserved, token = 8 + generator.max_tokens, record + 1
            write_record(segment, record, tickets, token, 0, 0, reserved, NEVER_NS, 0, cancels=0)
            segment.token_of[record] = token
            ring.push_few([record | record + 1 << 32])
        self._loop.step()
        self._made = tokens

    def run(self, steps: int) -> float:
        """CPU time of a step, in us."""
        began = time.process_time()
        for _ in range(steps):
            self._loop.step()
        self._made += steps * self._tokens
        return (time.process_time() - began) / steps * 1e6

    def check(self) -> None:
        for number, lane in enumerate(self._lanes):
            values = lane.outputs["token"].values
            for slot in range(number, lane.slots, len(self._lanes)):
                assert lane.outputs["token"].sizes[slot, 0] == self._made
                assert (values[slot, : self._made] == slot).all()


def _mapped(layout: Layout) -> Segment:
    fd = create(layout, sealed=False)
    try:
        return map_checked(fd, layout)
    finally:
        os.close(fd)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sequences", default="16,64,256", help="numbers of sequences")
    parser.add_argument("--lanes", type=int, default=2, help="lanes that these rows are of")
    parser.add_argument("--tokens", type=int, default=1, help="tokens of each in a step")
    parser.add_argument("--steps", type=int, default=400, help="steps of a round")
    parser.add_argument("--save", help="a JSON file for the figures")
    args = parser.parse_args()
    sizes = [int(size) for size in args.sequences.split(",")]
    scenes = {n: _Scene(n, args.lanes, args.tokens, args.steps) for n in sizes}
    times: dict[int, list[float]] = {n: [] for n in sizes}
    for _ in range(_ROUNDS):
        for n, scene in scenes.items():
            times[n].append(scene.run(args.steps))
    for scene in scenes.values():
        scene.check()
    rows: dict[str, Any] = {
        f"{n} sequences, CPU us a step": spread(found, 1) for n, found in times.items()
    }
    report("The loop around a generator's step", rows, args.save)


if __name__ == "__main__":
    main()
