"""Chunks through the pool: a thread reads, windows of rows are under way, ends come out in order.

At any time one chunk is read ahead, one or two are under way, and a few are to be written.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from batchpool.bulk.chunk import BadRow, Chunk, Reader
from batchpool.bulk.inputs import InputColumns
from batchpool.bulk.shown import Shown, shown_row, shown_text
from batchpool.client.mapped_rows import blocking
from batchpool.client.row_source import RowWindow
from batchpool.client.sync_driver import ThreadDriver
from batchpool.client.window_call import MapOptions
from batchpool.client.window_stream import WindowOutcome, run_windows
from batchpool.core.errors import InvalidRequest, PoolError
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec

_READ_AHEAD = 1
_END = object()


@dataclass(slots=True)
class ChunkEnd:
    """A chunk whose rows have all ended. outputs: {output: rows that are good, in order}, an array
    or a list. good: their places in the chunk. bad: the other rows."""

    chunk: Chunk
    outputs: dict[str, Any]
    good: Sequence[int]
    bad: list[BadRow]


@dataclass(slots=True)
class _Open:
    """A chunk that is under way. outputs: the arrays that its windows write to."""

    chunk: Chunk
    values: dict[str, Any]
    why: dict[int, str]
    outputs: dict[str, Array]
    taken: int = 0
    ended: int = 0
    outcomes: list[WindowOutcome] = field(default_factory=list)


class ReadAhead:
    """A reader's chunks, read by a thread of its own."""

    def __init__(self, reader: Reader, size: int, start: int) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(_READ_AHEAD)
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(reader, size, start), name="batchpool-reader", daemon=True
        )
        self._thread.start()

    def _run(self, reader: Reader, size: int, start: int) -> None:
        try:
            for chunk in reader.chunks(size, start):
                if not self._put(chunk):
                    return
                del chunk  # it is not held while the next one is read
            self._put(_END)
        except BaseException as exc:
            self._put(exc)

    def _put(self, item: Any) -> bool:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def __iter__(self) -> Iterator[Chunk]:
        while True:
            found = self._queue.get()
            if found is _END:
                return
            if isinstance(found, BaseException):
                raise found
            yield found

    def stop(self) -> None:
        """Read no more. The thread may wait for its input for ever, and is not waited for."""
        self._stopped.set()


class Pipeline:
    """Runs a reader's chunks through one model. start: the number of the first row."""

    holds_rows = True

    def __init__(
        self,
        driver: ThreadDriver,
        spec: ModelSpec,
        chunks: Iterator[Chunk],
        inputs: InputColumns,
        options: MapOptions,
    ) -> None:
        self._driver = driver
        self._spec = spec
        self._chunks = chunks
        self._inputs = inputs
        self._options = options
        self._open: deque[_Open] = deque()

    def ends(self) -> Generator[ChunkEnd, None, None]:
        """The ends of all chunks, in order."""
        windows = run_windows(self._driver, self._spec.name, self, self._options)
        for outcome in blocking(windows):
            first = self._open[0]
            first.outcomes.append(outcome)
            first.ended += outcome.n
            del outcome
            if first.ended == first.chunk.n:
                self._open.popleft()
                yield self._end(first)
                del first

    async def take(self, most: int, spec: ModelSpec) -> RowWindow | None:
        """The next rows of the open chunk, as the window loop asks for them."""
        last = self._open[-1] if self._open else None
        if last is None or last.taken == last.chunk.n:
            chunk = next(self._chunks, None)
            if chunk is None:
                return None
            values, why = self._inputs.read(chunk)
            last = _Open(chunk, values, why, self._room_for(chunk.n, spec))
            self._open.append(last)
        start = last.taken
        stop = last.taken = min(start + most, last.chunk.n)
        window = {name: column[start:stop] for name, column in last.values.items()}
        gaps = [at - start for at in last.why if start <= at < stop]
        if gaps:
            # None is no value of any input, so the client refuses these rows, and sends the others.
            window = {name: _with_gaps(column, gaps) for name, column in window.items()}
        outputs_to = {name: rows[start:stop] for name, rows in last.outputs.items()}
        return RowWindow(window, stop - start, outputs_to)

    def _room_for(self, n: int, spec: ModelSpec) -> dict[str, Array]:
        """Arrays for the outputs of n rows, as far as they are fixed numbers."""
        wanted = self._options.outputs
        return {
            tensor.name: np.empty((n, *tensor.max_shape), tensor.np_dtype)
            for tensor in spec.outputs
            if (wanted is None or tensor.name in wanted) and not (tensor.is_bytes or tensor.dynamic)
        }

    def _end(self, ended: _Open) -> ChunkEnd:
        chunk = ended.chunk
        bad: list[BadRow] = []
        first = chunk.start
        for outcome in ended.outcomes:
            for at, error in sorted(outcome.errors.items()):
                bad.append(self._bad_row(ended, outcome.start + at - first, error))
        good: Sequence[int] = range(chunk.n)
        if bad:
            places = {row.row - first for row in bad}
            good = [at for at in good if at not in places]
        return ChunkEnd(chunk, _joined(ended.outcomes, ended.outputs), good, bad)

    def _bad_row(self, ended: _Open, at: int, error: PoolError) -> BadRow:
        chunk = ended.chunk
        why = ended.why.get(at)
        code = InvalidRequest.code if why is not None else error.code
        said = error.message.removeprefix(f"row {chunk.start + at}: ")  # the number has its place
        message = why if why is not None else self._inputs.said_of(said)
        return BadRow(chunk.start + at, chunk.source(at), code, message, _shown(chunk, at))


def _with_gaps(column: Any, gaps: list[int]) -> list[Any]:
    values = list(column)
    for at in gaps:
        values[at] = None
    return values


def _joined(outcomes: list[WindowOutcome], whole: dict[str, Array]) -> dict[str, Any]:
    """The outputs of good rows of neighbouring windows. whole: the arrays that may hold them."""
    parts: dict[str, list[Any]] = {}
    all_good = not any(outcome.errors for outcome in outcomes)
    for outcome in outcomes:
        for name, rows in outcome.outputs.items():
            if outcome.errors:
                rows = [row for at, row in enumerate(rows) if at not in outcome.errors]
            if len(rows) > 0:
                parts.setdefault(name, []).append(rows)
    joined: dict[str, Any] = {}
    for name, several in parts.items():
        if all_good and name in whole and all(rows.base is whole[name] for rows in several):
            joined[name] = whole[name]  # each window wrote its own rows of it
            continue
        several = [
            np.stack(rows) if isinstance(rows, list) and _alike(rows) else rows for rows in several
        ]
        arrays = all(isinstance(rows, np.ndarray) for rows in several)
        if arrays and len({rows.shape[1:] for rows in several}) == 1:
            joined[name] = np.concatenate(several)
        else:
            joined[name] = [row for rows in several for row in rows]
    return joined


def _alike(rows: list[Any]) -> bool:
    return len({np.shape(row) for row in rows}) == 1 and not isinstance(rows[0], bytes)


def _shown(chunk: Chunk, at: int) -> Shown:
    """A row as its columns have it, or its text where it has none."""
    if at in chunk.unread and chunk.unread[at][1]:
        return shown_text(chunk.unread[at][1])
    return shown_row(chunk.row(at))
