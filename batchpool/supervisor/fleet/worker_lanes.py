"""The messages to workers about a lane: there is one, its client is gone, it is closed."""

from __future__ import annotations

from batchpool.control.process_messages import AddWorkerLane, DropLane, EndSequences
from batchpool.supervisor.children.worker_slot import WorkerSlot
from batchpool.supervisor.resources.lane_table import LaneEntry


def tell_lane(worker_slot: WorkerSlot, entry: LaneEntry) -> None:
    """Let a worker map a lane, which it is to take in time. A generator's worker rings the lane's
    client by itself, and no device reads its lanes."""
    rings = worker_slot.model.spec.generates
    message = AddWorkerLane(
        lane=entry.number,
        serial=entry.serial,
        slots=entry.layout.slots,
        pinned=entry.pinned and not rings,
        arena_bytes=entry.layout.arena_bytes,
        rings=rings,
    )
    worker_slot.send_lane(message, [entry.fd, entry.bells.to_client] if rings else [entry.fd])
    if entry.closing:
        end_sequences(worker_slot, entry)


def end_sequences(worker_slot: WorkerSlot, entry: LaneEntry) -> None:
    """Tell a worker that the client of a lane is gone. Only a generator's asks: its sequences may
    run for minutes, and the lane cannot be closed before they end."""
    if worker_slot.child is not None and worker_slot.model.spec.generates:
        worker_slot.child.send(EndSequences(entry.number))


def drop_lane(worker_slot: WorkerSlot, entry: LaneEntry) -> None:
    """Let a worker unmap a lane that the batcher has closed."""
    worker_slot.send_drop(DropLane(entry.number))
