"""Sinks: where the ends of chunks go, to parts that become a file, or straight to stdout."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np

from batchpool.bulk.chunk import BadRow
from batchpool.bulk.lines import is_read_once
from batchpool.bulk.made_folders import MadeFolders
from batchpool.bulk.manifest import Manifest
from batchpool.bulk.parts import Parts, sync_folder, told
from batchpool.bulk.pipeline import ChunkEnd
from batchpool.bulk.plan import BulkPlan
from batchpool.bulk.targets import beside, check_free
from batchpool.bulk.writers import Writer, readable, readable_rows
from batchpool.core.errors import StartError
from batchpool.core.tensors.spec import Tensor

_WAITING = 2  # chunks that have ended, besides the one that is being written


class Committed:
    """Ends of chunks as parts beside the output, and the output at the end.

    done: parts that were there. bad: bad rows in these. errors: the path of the file of bad rows.
    """

    def __init__(self, plan: BulkPlan, writer: Writer, errors: str) -> None:
        self._plan = plan
        self._errors = errors
        self._writer = writer
        self._parts = Parts(plan.out)
        self._folders = MadeFolders()
        self._thread = ThreadPoolExecutor(1, "batchpool-writer")
        self._writing: deque[Future[None]] = deque()
        self._broken = False  # a part could not be committed
        self.done = self.bad = 0

    def begin(self, manifest: Manifest, size: int) -> int:
        """Take the parts that are there; returns the rows of a chunk, `size` if nobody says it."""
        goes_on = not any(map(is_read_once, self._plan.inputs))
        with told(self._plan.out):
            self._folders.make_for(self._plan.out)
        found = self._parts.open(manifest, size, restart=self._plan.restart, goes_on=goes_on)
        with told(self._errors):  # not at the end, when there may be rows for it
            self._folders.make_for(self._errors)
        if os.path.exists(self._plan.out) and not self._plan.restart:  # since this run began
            raise StartError(f"{self._plan.out} exists: another run has written it meanwhile")
        self.done = self._parts.done
        self.bad = sum(record["bad_rows"] for record in self._parts.records())
        rows: int = found["chunk_rows"]
        return rows

    def put(self, end: ChunkEnd, outputs: Sequence[Tensor]) -> None:
        """Commit a chunk in the background; a disk that is slow for a moment holds nothing up."""
        self._settle(_WAITING)
        self._writing.append(self._thread.submit(self._commit, end, outputs))

    def _commit(self, end: ChunkEnd, outputs: Sequence[Tensor]) -> None:
        if self._broken:
            return  # a part after one that is not there would stand in its place
        self._broken = True
        columns, n = written_columns(end, outputs, self._plan.keep, fills=self._writer.fills)
        self._parts.commit(
            lambda file: self._writer.write(file, columns, n),
            _lines(end.bad),
            {"n": n, "bad_rows": len(end.bad)},
        )
        self._broken = False

    def _settle(self, waiting: int = 0) -> None:
        """Wait until no more than so many chunks are to be committed."""
        while len(self._writing) > waiting:
            self._writing.popleft().result()

    def settle(self) -> None:
        """Wait until all chunks are committed."""
        self._settle()

    def finish(self) -> None:
        """Join the parts to the output, and remove them."""
        out, parts = self._plan.out, self._parts
        records = list(parts.records())
        with told(out):
            whole = os.path.join(parts.folder, "whole.tmp")
            try:
                with open(whole, "wb") as file:
                    paths = [parts.checked(number) for number in range(parts.done)]
                    self._writer.join(paths, file, records)
                    file.flush()
                    os.fsync(file.fileno())
            except BaseException:
                os.remove(whole)  # a full disk gets its room back
                raise
            self._join_bad(records)
            os.rename(whole, out)
            sync_folder(out)
        parts.remove()

    def _join_bad(self, records: Sequence[dict[str, Any]]) -> None:
        """The file of bad rows; none, also not of a run before this one, where there are none."""
        if not any("bad" in record for record in records):
            if os.path.exists(self._errors):
                os.remove(self._errors)
            return
        whole = beside(self._errors)
        with open(whole, "wb") as file:
            for number, record in enumerate(records):
                if "bad" in record:
                    with open(self._parts.bad_path(number), "rb") as part:
                        file.write(part.read())
            file.flush()
            os.fsync(file.fileno())
        os.rename(whole, self._errors)
        sync_folder(self._errors)

    def close(self) -> None:
        """A part that is being written is committed; the parts stay for the next run."""
        try:
            self._settle()
        finally:
            self._thread.shutdown()
            self._parts.close()
            self._folders.drop_empty()


class Streamed:
    """Ends of chunks on stdout, in order, as they come. errors: the path of the file of bad rows;
    "" for stderr."""

    done = bad = 0

    def __init__(self, plan: BulkPlan, writer: Writer, errors: str) -> None:
        self._plan = plan
        self._writer = writer
        self._errors = errors
        self._file: Any = None
        self._folders = MadeFolders()

    def begin(self, manifest: Manifest, size: int) -> int:
        """Write what comes before the rows; returns the rows of a chunk."""
        if self._errors:
            if not self._plan.restart:
                check_free(self._errors, "--errors")
            with told(self._errors):
                self._folders.make_for(self._errors)
                self._file = open(self._errors, "wb")  # noqa: SIM115
        self._writer.join([], sys.stdout.buffer, [])
        rows: int = manifest["chunk_rows"] or size
        return rows

    def put(self, end: ChunkEnd, outputs: Sequence[Tensor]) -> None:
        """Write the rows of a chunk."""
        columns, n = written_columns(end, outputs, self._plan.keep, fills=False)
        self._writer.write(sys.stdout.buffer, columns, n)
        sys.stdout.buffer.flush()
        if end.bad:
            file = self._file or sys.stderr.buffer
            file.write(_lines(end.bad))
            file.flush()

    def settle(self) -> None:
        """Each chunk was written as it came."""
        sys.stdout.buffer.flush()

    def finish(self) -> None:
        """Nothing is left to write."""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._folders.drop_empty()


def written_columns(
    end: ChunkEnd, outputs: Sequence[Tensor], keep: Sequence[str], *, fills: bool
) -> tuple[dict[str, Any], int]:
    """({column: rows that are written}, how many): the kept columns, then the outputs.

    fills: bad rows are written, too, as NaN or 0.
    """
    chunk, good = end.chunk, end.good
    columns: dict[str, Any] = {}
    for name in keep:
        column = chunk.columns.get(name)
        if column is None:
            column = [None] * chunk.n
        columns[name] = _picked(column, good, chunk.n)
    for tensor in outputs:
        rows = end.outputs.get(tensor.name, _no_rows(tensor))
        rows = readable_rows(tensor, rows)
        if fills and end.bad:
            shown = readable(tensor)
            whole = np.zeros((chunk.n, *shown.max_shape), shown.np_dtype)
            if shown.np_dtype.kind == "f":
                whole.fill(np.nan)
            if good:
                whole[good] = rows
            rows = whole
        columns[tensor.name] = rows
    return columns, chunk.n if fills else len(good)


def _no_rows(tensor: Tensor) -> Any:
    return [] if tensor.dynamic else np.empty((0, *tensor.max_shape), tensor.np_dtype)


def _picked(column: Any, good: Sequence[int], n: int) -> Any:
    if len(good) == n:
        return column
    if isinstance(column, list):
        return [column[at] for at in good]
    if isinstance(column, np.ndarray):
        return column[list(good)]
    return column.take(list(good))


def _lines(bad: Sequence[BadRow]) -> bytes:
    return b"".join(msgspec.json.encode(row.line()) + b"\n" for row in bad)
