"""The account at the end of a run: nothing is left, and everything was counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchpool.batcher.metrics import BatcherMetrics, End
from batchpool.client.arena_lane_client import ArenaLaneClient
from batchpool.core.layout.stage_numbers import entry_of
from batchpool.core.layout.states import BatchOutcome, SlotState
from batchpool.core.metrics.segments import BATCHES_KEPT
from batchpool.core.tensors.stages import stages_of
from tests.sim.callers import ClientActor
from tests.sim.memory import SimMemory

if TYPE_CHECKING:
    from tests.sim.world import World


def left_over(world: World) -> list[str]:
    """Rows, records, ring entries, lanes of dead clients that are left, once all is quiet."""
    clients = {a.lane.number: a for a in world.actors if isinstance(a, ClientActor)}
    left = [f"lane {n} that no client has" for n in world.lanes if n not in clients]
    left += ["a move that is not over"] * world.moving.busy
    left += [f"{c.process} on an old lane" for c in clients.values() if c.left]
    for number, client in clients.items():
        if client.lane.entry is not world.serving:
            left.append(f"{client.process} was not sent its new lane")
        left += [f"{client.process}: no answer to {r}" for r in client.open]
        left += [f"{client.process}: {client.lane_client.allocator.claimed} slots claimed"] * bool(
            client.lane_client.allocator.claimed
        )
        if isinstance(client.lane_client, ArenaLaneClient):
            used = client.lane_client.arena.allocator.used
            left += [f"{client.process}: {used} bytes of its arena claimed"] * bool(used)
        memory = client.lane.memory
        for slot, state in enumerate(memory.column("state")):
            if state != SlotState.FREE:
                left.append(f"lane {number} slot {slot} is {SlotState(state).name}")
        left += _pending(memory, f"lane {number}")
    for records in world.workers.values():
        left += _pending(records.memory, f"worker {records.number}")
        if list(records.memory.column("token")) != list(records.memory.column("freed")):
            left.append(f"worker {records.number} has a record that is not free")
    batcher = world.batcher.batcher
    lanes, workers = batcher.lanes.by_number, batcher.workers.by_number
    if not batcher.is_empty() or any(lane.running for lane in lanes.values()):
        left.append("the batcher holds rows")
    if set(lanes) != set(clients) or set(workers) != set(world.workers):
        left.append(f"the batcher has lanes {set(lanes)}, workers {set(workers)}")
    models = {entry_of(number) for number in batcher.models}
    if models != set(world.entries) or len(world.entries) != 1:
        left.append(f"the batcher has models {set(batcher.models)} of {set(world.entries)}")
    return left


def _pending(memory: SimMemory, name: str) -> list[str]:
    return [
        f"{name}: {ring} has entries pending"
        for ring in ("sq", "cq")
        if memory.word(f"{ring}_tail") != memory.word(f"{ring}_head")
    ]


def wrong_counts(world: World) -> list[str]:
    """Counts and records of the batchers, which outlive them, that are wrong.

    No batch is counted twice and none that was answered is missing, whenever batchers died; rows
    that came in and rows that ended are as many, unless one died in between.
    """
    metrics = [BatcherMetrics(words) for entry in world.metrics for words in entry.values()]
    last_stage = stages_of(world.serving.spec)[-1]  # of all entries: they have the same stages
    last = [BatcherMetrics(entry[last_stage]) for entry in world.metrics]
    batches = world.flight_recorder.last()
    ended_by = {end: sum(each.ended(end) for each in metrics) for end in End}
    admitted = sum(each.admitted for each in metrics)
    names = {(batch.process, batch.token) for batch in batches}
    good = [batch for batch in batches if batch.outcome == BatchOutcome.OK]
    ok = sum(batch.rows for batch in good if world.stages[batch.process] is last_stage)
    ended = sum(ended_by.values())
    wrong = []
    if len(names) < len(batches):
        wrong.append("a batch is recorded twice")
    ended_last = {end: sum(each.ended(end) for each in last) for end in End}
    well = ended_last[End.OK] + ended_last[End.INVALID_INPUT]
    # A worker leaves out rows that were over when it came to their batch.
    over = ended_last[End.DEADLINE] + ended_last[End.CANCELLED]
    if world.serving.spec.generates:  # its sequences end as such
        over += ended_last[End.CLIENT_GONE]
    if len(batches) < BATCHES_KEPT and not well <= ok <= well + over:
        wrong.append(
            f"{well} rows ended well or were refused, {over} were late or cancelled,"
            f" and {ok} were in good batches by the records"
        )
    if world.right_rows > ended_by[End.OK]:
        wrong.append(f"{world.right_rows} rows were answered, {ended_by[End.OK]} counted")
    if not any(name.startswith("batcher") for name in world.buried) and ended != admitted:
        wrong.append(f"{admitted} rows were admitted, {ended} ended")
    return wrong
