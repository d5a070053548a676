"""The counters: the words in which every process of the pool counts, and their sum.

Each word has one writer, which stores into it by index; see core/metrics/table.py for the meaning
of the words and core/metrics/segments.py for the owners of the rows. A reader takes no lock and
stops nobody: it adds up words that go on moving, each of which never goes back.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from batchpool.core.layout.segments import MODELS_MOST
from batchpool.core.layout.stage_numbers import stage_number
from batchpool.core.metrics.segments import OF_ENTRIES, WORKER_SLOTS_MOST, counters_layout
from batchpool.core.metrics.table import BLOCKS, Block
from batchpool.core.metrics.totals import Totals
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.stages import Stage
from batchpool.shm.segment import Segment, map_checked

SUPERVISOR, BATCHER = 0, 1  # rows of processes
_LOOKS, _BETWEEN_LOOKS_S = 100, 0.001
NO_MODEL = MODELS_MOST  # a front end's entry of requests for no model
_NOUNS = {stage.label: stage.worker_noun for stage in Stage}
_PID = BLOCKS["process"].word("process_pid")
_START = BLOCKS["process"].word("process_start_time_seconds")
_UP = BLOCKS["process"].word("process_up")


def frontend_row(i: int) -> int:
    """The process row of front end i."""
    return 2 + i


# methods: of the writers of names, and of the readers
class Counters:
    """The counters of a pool with so many front ends."""

    def __init__(self, fd: int, frontends: int, *, writable: bool = True) -> None:
        self.frontends = frontends
        self._layout = layout = counters_layout(frontends)
        self._segment: Segment = map_checked(fd, layout, writable=writable)
        self.cells = self._segment.cells()
        self.alive = self._column("model.alive")
        self.held = self._column("seat.held")
        self._names = self._column("model.name")
        self._turn = self._column("turn")
        self._labels = self._column("seat.label")

    def _column(self, name: str) -> Array:
        return self._segment.array(self._layout.columns[name])

    def place(self, writer: str, row: int = 0, entry: int = 0) -> int:
        """Where a block begins among the cells. row: the entry, front end, slot or process."""
        column = self._layout.columns[writer]
        if len(column.shape) == 3:  # a front end has a block for each entry
            row = row * column.shape[1] + entry
        return column.offset // 8 + row * column.shape[-1]

    def worker_slot_row(self, worker_slot: int) -> int:
        """The process row of the worker in this worker slot."""
        return 2 + self.frontends + worker_slot

    @property
    def tasks_row(self) -> int:
        """The process row of the task process."""
        return 2 + self.frontends + WORKER_SLOTS_MOST

    # -- whose they are: the supervisor writes it -----------------------------------------

    def name_model(self, entry: int, name: str) -> None:
        """Gives the entry to a model from now on, to none with "". Counts of another name are
        kept if that has another entry, so that no counter goes back, and else forgotten.

        Nobody may be counting for the other any more.
        """
        before = self.model_name(entry)
        if before == name:
            return
        self._turn[0] += 1
        if before:
            names = self.model_names()
            names[entry] = ""
            successor = names.index(before) if before in names else -1
            for place, writer, stage in self._of_entry(entry):
                if successor >= 0:
                    kept = self.place(f"kept.{writer}", stage_number(successor, stage))
                    self._add(place, kept, BLOCKS[writer])
                self._clear(place, BLOCKS[writer].size)
        _write_text(self._names, entry, name)
        self._turn[0] += 1

    def _of_entry(self, entry: int) -> Iterator[tuple[int, str, Stage]]:
        """The place, writer and stage of each block of an entry; those that know no stages have
        the blocks of INFER."""
        for stage in Stage:
            number = stage_number(entry, stage)
            yield self.place("batcher", number), "batcher", stage
            yield self.place("kept.batcher", number), "batcher", stage
        yield self.place("supervisor", entry), "supervisor", Stage.INFER
        for i in range(self.frontends):
            yield self.place("frontend", i, entry), "frontend", Stage.INFER
        for writer in OF_ENTRIES:
            yield self.place(f"kept.{writer}", entry), writer, Stage.INFER

    def _add(self, place: int, to: int, block: Block) -> None:
        for i in range(block.size):
            if i in block.lasting:
                self.cells[to + i] = max(self.cells[to + i], self.cells[place + i])
            else:
                self.cells[to + i] += self.cells[place + i]

    def _clear(self, place: int, words: int) -> None:
        for at in range(place, place + words):
            self.cells[at] = 0

    def label_worker_slot(
        self, worker_slot: int, model: str, worker: int, device: str, stage: Stage = Stage.INFER
    ) -> None:
        """Names the owner of a worker slot's row, until it is forgotten."""
        _write_text(self._labels, worker_slot, f"{model}\0{worker}\0{device}\0{stage.label}")

    def forget_worker_slot(self, worker_slot: int) -> None:
        """The row is nobody's any more: nobody counts there."""
        _write_text(self._labels, worker_slot, "")
        self._clear(self.place("worker", worker_slot), BLOCKS["worker"].size)
        self._clear(
            self.place("process", self.worker_slot_row(worker_slot)), BLOCKS["process"].size
        )

    # -- reading ----------------------------------------------------------------------------

    def model_name(self, entry: int) -> str:
        """The name of the model of an entry; "" if it never had one."""
        return _text(self._names, entry)

    def worker_slot_label(self, worker_slot: int) -> tuple[str, str, str, str]:
        """(model, number of the worker, device, stage) of a worker slot; four times "" if it has
        none."""
        label = _text(self._labels, worker_slot)
        model, worker, device, stage = (*label.split("\0"), "", "", "", "")[:4]
        return model, worker, device, stage

    def worker_slot_name(self, worker_slot: int) -> str:
        """The worker of a worker slot as the other accounts name it; "" if there is none."""
        model, worker, _, stage = self.worker_slot_label(worker_slot)
        return f"{_NOUNS.get(stage, stage)} {worker} of {model}" if model else ""

    def model_names(self) -> list[str]:
        """The names of all entries that have one, by entry."""
        names = [self.model_name(entry) for entry in range(MODELS_MOST)]
        while names and not names[-1]:
            names.pop()
        return names

    def worker_slot_names(self) -> list[str]:
        """The names of the workers by row; "" where there is none."""
        rows = self.worker_slot_rows()
        names = [""] * (rows[-1] + 1 if rows else 0)
        for row in rows:
            names[row] = self.worker_slot_name(row)
        return names

    def worker_slot_rows(self) -> list[int]:
        """The rows that are somebody's."""
        rows: list[int] = np.flatnonzero(self._labels[:, 0]).tolist()
        return rows

    def totals(self) -> Totals:
        """The counts of all processes so far.

        `turn` is odd while counts go from one block to another, and rises with each time: what
        was read meanwhile has them twice or not at all, and is read again (a sequence lock, as in
        the Linux kernel's Documentation/locking/seqlock.rst). A supervisor that died in between
        ends the pool; it is not waited for.
        """
        for _ in range(_LOOKS):
            before = int(self._turn[0])
            totals = self._all()
            if before % 2 == 0 and before == self._turn[0]:
                return totals
            time.sleep(_BETWEEN_LOOKS_S)
        return totals

    def _all(self) -> Totals:
        totals = Totals()
        totals.add("pool", (), self._words("pool"))
        processes = [self._words("process", row) for row in range(2 + self.frontends)]
        names = ["supervisor", "batcher", *(f"frontend {i}" for i in range(self.frontends))]
        for name, words in zip(names, processes, strict=True):
            totals.add("process", (name,), words, alive=words[_PID] != 0)
        words = self._words("process", self.tasks_row)
        if words[_START]:  # else there never was one
            totals.add("process", ("tasks",), words, alive=words[_PID] != 0)
        batching = processes[BATCHER][_UP] != 0
        for entry in range(MODELS_MOST):
            name = self.model_name(entry)
            if name:
                alive = bool(self.alive[entry])
                for stage in Stage:
                    number = stage_number(entry, stage)
                    words, kept = (self._words(of, number) for of in ("batcher", "kept.batcher"))
                    if stage is Stage.INFER or any(words) or any(kept):  # else it has no such stage
                        own = name, stage.label
                        totals.add("batcher", own, words, alive=alive and batching)
                        totals.add("batcher", own, kept, gone=True)
                totals.add("supervisor", (name,), self._words("supervisor", entry), alive=alive)
                self._add_frontends(totals, entry, name)
                for writer in OF_ENTRIES:
                    words = self._words(f"kept.{writer}", entry)
                    totals.add(writer, (name,), words, gone=True)
        self._add_frontends(totals, NO_MODEL, "")
        for worker_slot in self.worker_slot_rows():
            label = self.worker_slot_label(worker_slot)
            if not label[0]:
                continue  # it was forgotten meanwhile
            totals.add("worker", label, self._words("worker", worker_slot))
            words, name = (
                self._words("process", self.worker_slot_row(worker_slot)),
                self.worker_slot_name(worker_slot),
            )
            gone = not self.held[worker_slot]
            totals.add("process", (name,), words, alive=words[_PID] != 0, gone=gone)
        return totals

    def _add_frontends(self, totals: Totals, entry: int, name: str) -> None:
        for i in range(self.frontends):
            totals.add("frontend", (name,), self._words("frontend", i, entry))

    def _words(self, writer: str, row: int = 0, entry: int = 0) -> list[int]:
        at = self.place(writer, row, entry)
        return self.cells[at : at + BLOCKS[writer.removeprefix("kept.")].used].tolist()


def _text(column: Array, row: int) -> str:
    raw: bytes = column[row].tobytes()
    return raw.rstrip(b"\0").decode(errors="replace") if raw[0] else ""


def _write_text(column: Array, row: int, text: str) -> None:
    """Without its first byte there is no text: it goes first and comes last."""
    raw = text.encode()[: column.shape[1]].ljust(column.shape[1], b"\0")
    column[row, 0] = 0
    for at in range(1, len(raw)):
        column[row, at] = raw[at]
    column[row, 0] = raw[0]
