"""The byte layouts of what only counts and tells: the counters and the flight recorder."""

from __future__ import annotations

from batchpool.core.layout.segments import MODELS_MOST, Adder, Layout, finish, words_at
from batchpool.core.metrics.table import BLOCKS

OF_MODELS = ("batcher", "frontend", "supervisor")  # who counts for each model
SEATS_MOST = 512  # rows of workers in the counters
BATCHES_KEPT = 1024  # by the flight recorder
BATCH_WORDS = 17  # what it tells of a batch: shm/stats/flight_recorder.py
INCIDENTS_KEPT = 64  # beside them
INCIDENT_BYTES = 512  # shm/stats/recent_errors.py


def counters_layout(frontends: int) -> Layout:
    """The layout of the pool's counters: blocks of words as core/metrics/table.py places them.

    The supervisor says whose they are: the name of a model entry and whether it is served; for the
    row of a seat a text "model\\0worker\\0device" and whether a seat has it now. The last entry of
    a front end is of requests for no model. process: supervisor, batcher, front ends, seats.
    turn: odd while the supervisor moves counts from one block to another.
    kept: what was counted under the name of an entry in others that have another name by now.
    """
    words, at = words_at({})
    adder = Adder(at)
    entries, posts = MODELS_MOST, 2 + frontends + SEATS_MOST
    adder.add("model.name", "u1", (entries, 128), "supervisor")
    adder.add("model.alive", "u4", (entries,), "supervisor")
    adder.add("seat.label", "u1", (SEATS_MOST, 256), "supervisor")
    adder.add("seat.held", "u4", (SEATS_MOST,), "supervisor")
    for writer, rows, who in (
        ("pool", (1,), "supervisor"),
        ("batcher", (entries,), "batcher"),
        ("frontend", (frontends, entries + 1), "the front end"),
        ("worker", (SEATS_MOST,), "the seat's worker"),
        ("supervisor", (entries,), "supervisor"),
        ("process", (posts,), "supervisor"),
    ):
        adder.add(writer, "u8", (*rows, BLOCKS[writer].size), who)
    adder.add("turn", "u8", (1,), "supervisor")
    for writer in OF_MODELS:
        adder.add(f"kept.{writer}", "u8", (entries, BLOCKS[writer].size), "supervisor")
    return finish("meters", posts, 1, words, adder)


def flight_recorder_layout() -> Layout:
    """The layout of the flight recorder: the last batches and errors, written by the batcher."""
    words, at = words_at({})
    adder = Adder(at)
    adder.add("batches", "u8", (BATCHES_KEPT, BATCH_WORDS), "batcher")
    adder.add("incidents", "u1", (INCIDENTS_KEPT, INCIDENT_BYTES), "batcher")
    return finish("recorder", BATCHES_KEPT, BATCHES_KEPT, words, adder)
