"""The byte layouts of the segments for counts and for records of batches and errors."""

from __future__ import annotations

from batchpool.core.layout.segments import MODELS_MOST, Adder, Layout, finish, words_at
from batchpool.core.layout.stage_numbers import STAGES_MOST
from batchpool.core.metrics.table import BLOCKS

OF_STAGES = ("batcher",)  # writers with a block for each stage of a model entry
OF_ENTRIES = ("frontend", "supervisor")  # for each model entry
OF_MODELS = OF_STAGES + OF_ENTRIES
WORKER_SLOTS_MOST = 512  # rows of workers in the counters
BATCHES_KEPT = 1024  # rows of the flight recorder
BATCH_WORDS = 17  # words of a row, see shm/stats/flight_recorder.py
ERRORS_KEPT = 64  # records of recent errors, in the same segment
ERROR_BYTES = 512  # bytes of a record, see shm/stats/recent_errors.py
TRACEBACKS_KEPT = 2  # of each worker, in a segment of their own
TRACEBACK_BYTES = 4096  # bytes of each, see shm/stats/tracebacks.py


def counters_layout(frontends: int) -> Layout:
    """The layout of the pool's counters: blocks of words as core/metrics/table.py places them.

    model.name, model.alive: the name of each model entry, and 1 while it is served.
    seat.label, seat.held: of each row of a worker the text "model\\0worker\\0device\\0stage", and 1
    while a worker has the row.  batcher: a row for each stage number.  frontend: the last entry
    counts requests for no model.  process: the supervisor, the batcher, the front ends, the
    workers, the task process.  turn: odd while the supervisor moves counts from one block to
    another.  kept: the counts of earlier entries with the entry's name.
    """
    words, at = words_at({})
    adder = Adder(at)
    entries, processes = MODELS_MOST, 2 + frontends + WORKER_SLOTS_MOST + 1
    adder.add("model.name", "u1", (entries, 128), "supervisor")
    adder.add("model.alive", "u4", (entries,), "supervisor")
    adder.add("seat.label", "u1", (WORKER_SLOTS_MOST, 256), "supervisor")
    adder.add("seat.held", "u4", (WORKER_SLOTS_MOST,), "supervisor")
    for writer, rows, who in (
        ("pool", (1,), "supervisor"),
        ("batcher", (STAGES_MOST,), "batcher"),
        ("frontend", (frontends, entries + 1), "the front end"),
        ("worker", (WORKER_SLOTS_MOST,), "the seat's worker"),
        ("supervisor", (entries,), "supervisor"),
        ("process", (processes,), "supervisor"),
    ):
        adder.add(writer, "u8", (*rows, BLOCKS[writer].size), who)
    adder.add("turn", "u8", (1,), "supervisor")
    for writer in OF_MODELS:
        rows_kept = STAGES_MOST if writer in OF_STAGES else entries
        adder.add(f"kept.{writer}", "u8", (rows_kept, BLOCKS[writer].size), "supervisor")
    return finish("meters", processes, 1, words, adder)


def flight_recorder_layout() -> Layout:
    """The layout of the flight recorder: the last batches and errors, written by the batcher."""
    words, at = words_at({})
    adder = Adder(at)
    adder.add("batches", "u8", (BATCHES_KEPT, BATCH_WORDS), "batcher")
    adder.add("incidents", "u1", (ERRORS_KEPT, ERROR_BYTES), "batcher")
    return finish("recorder", BATCHES_KEPT, BATCHES_KEPT, words, adder)


def tracebacks_layout() -> Layout:
    """The layout of the tracebacks that workers keep, by the worker's row in the counters."""
    words, at = words_at({})
    adder = Adder(at)
    shape = (WORKER_SLOTS_MOST, TRACEBACKS_KEPT, TRACEBACK_BYTES)
    adder.add("tracebacks", "u1", shape, "the seat's worker")
    return finish("tracebacks", WORKER_SLOTS_MOST, TRACEBACKS_KEPT, words, adder)


def statistics_layouts(frontends: int, *, tasks: bool) -> list[Layout]:
    """The layouts of all these segments of a pool. tasks: it keeps tasks."""
    of_tasks = [tracebacks_layout()] if tasks else []
    return [counters_layout(frontends), flight_recorder_layout(), *of_tasks]
