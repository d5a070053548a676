"""Rows of Parquet and Arrow IPC files, read by record batches and cut by row numbers only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from batchpool.arrow.types import arrow
from batchpool.bulk.chunk import Chunk
from batchpool.core.errors import StartError

_BATCH_ROWS = 16_384


class TableReader:
    """Files of one table each, with the same columns. parquet: or Arrow IPC, file or stream."""

    def __init__(self, paths: Sequence[str], *, parquet: bool) -> None:
        self._paths = paths
        self._parquet = parquet
        self._wanted: tuple[str, ...] | None = None
        self.total: int | None = 0
        schema: Any = None
        for path in paths:
            with _told(path):
                own, rows = self._look(path)
            if schema is not None and own != schema:
                raise StartError(
                    f"{path} has other columns than {paths[0]}: {_listed(own)}; {_listed(schema)}"
                    " were expected"
                )
            schema = own
            self.total = None if rows is None or self.total is None else self.total + rows
        self.names: tuple[str, ...] | None = tuple(schema.names)
        for name in schema.names:
            if schema.names.count(name) > 1:
                raise StartError(f"{paths[0]}: column {name!r} stands twice")

    def want(self, names: Sequence[str]) -> None:
        """Read these columns only."""
        self._wanted = tuple(dict.fromkeys(names))

    def chunks(self, size: int, start: int) -> Iterator[Chunk]:
        pa = arrow()
        left: list[Any] = []
        held = 0
        for batch in self._batches(start):
            left.append(batch)
            held += batch.num_rows
            while held >= size:
                table = pa.Table.from_batches(left)
                yield _chunk(start, table.slice(0, size))
                start += size
                held -= size
                left = table.slice(size).to_batches() if held else []
        if held:
            yield _chunk(start, pa.Table.from_batches(left))

    def _look(self, path: str) -> tuple[Any, int | None]:
        """The schema and the number of rows of a file."""
        pa = arrow()
        if self._parquet:
            import pyarrow.parquet

            with pyarrow.parquet.ParquetFile(path) as file:
                return file.schema_arrow, file.metadata.num_rows
        with pa.memory_map(path) as source:
            if source.read(6) == b"ARROW1":
                file = pa.ipc.open_file(source)
                return file.schema, file.count_rows()
            source.seek(0)
            return pa.ipc.open_stream(source).schema, None

    def _batches(self, start: int) -> Iterator[Any]:
        """Record batches of all files, without the first `start` rows."""
        for path in self._paths:
            with _told(path):
                for batch in self._parquet_batches(path, start) if self._parquet else _ipc(path):
                    if isinstance(batch, int):  # rows of a row group that is passed over
                        start -= batch
                        continue
                    if start >= batch.num_rows:
                        start -= batch.num_rows
                        continue
                    if start:
                        batch, start = batch.slice(start), 0
                    if not self._parquet and self._wanted is not None:
                        batch = batch.select(list(self._wanted))
                    yield batch

    def _parquet_batches(self, path: str, start: int) -> Iterator[Any]:
        import pyarrow.parquet

        columns = None if self._wanted is None else list(self._wanted)
        with pyarrow.parquet.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if start >= rows:
                    start -= rows
                    yield rows
                    continue
                for batch in file.iter_batches(_BATCH_ROWS, [group], columns, use_threads=False):
                    start = max(0, start - batch.num_rows)
                    yield batch


def _ipc(path: str) -> Iterator[Any]:
    pa = arrow()
    with pa.memory_map(path) as source:
        if source.read(6) == b"ARROW1":
            file = pa.ipc.open_file(source)
            for at in range(file.num_record_batches):
                yield file.get_batch(at)
            return
        source.seek(0)
        yield from pa.ipc.open_stream(source)


class _told:
    """Errors of reading a file as StartError, with its name."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, OSError) and error.errno is not None:
            raise StartError(f"cannot read {self._path}: {error.strerror or error}") from None
        if isinstance(error, (arrow().ArrowException, OSError, EOFError)):
            text = str(error).split("\n")[0][:300]
            raise StartError(f"{self._path} cannot be read: {text}") from None


def _chunk(start: int, table: Any) -> Chunk:
    return Chunk(start, table.num_rows, dict(zip(table.column_names, table.columns, strict=True)))


def _listed(schema: Any) -> str:
    text = ", ".join(f"{field.name}: {field.type}" for field in schema)
    return text if len(text) <= 300 else text[:297] + "..."
