"""A bulk run: reads, runs and commits chunk by chunk, and joins the parts at the end."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from time import monotonic as _now_s

from batchpool.arrow.types import arrow
from batchpool.bulk.chunk import Chunk, Reader
from batchpool.bulk.folders import FileReader
from batchpool.bulk.formats import Format, check_rows_of_folders, input_format, output_format
from batchpool.bulk.inputs import InputColumns, check_first_rows, mapped_columns
from batchpool.bulk.joined import parts_of
from batchpool.bulk.lines import STDIN, is_read_once
from batchpool.bulk.manifest import FORM, Manifest, input_prints, tensors_print
from batchpool.bulk.pipeline import ChunkEnd, Pipeline, ReadAhead
from batchpool.bulk.plan import BulkPlan, chosen_outputs, rows_of_a_chunk
from batchpool.bulk.progress import Progress, counted
from batchpool.bulk.sinks import Committed, Streamed
from batchpool.bulk.tables import TableReader
from batchpool.bulk.targets import check_errors, check_files, check_free, check_out, written_paths
from batchpool.bulk.writers import readable, writer_of
from batchpool.client.pool_facts import ModelFacts
from batchpool.client.sync_driver import ThreadDriver
from batchpool.client.window_call import MapOptions
from batchpool.core.errors import ConfigError, NotFound, PoolError, StartError
from batchpool.core.tensors.rows import check_parameters
from batchpool.core.tensors.spec import ModelSpec, Tensor

PRIORITY = 255  # the last: whoever waits for an answer goes first
_ATTACH_S = 10.0


@dataclass(slots=True)
class BulkEnd:
    """The end of a run. rows: of the input. bad: those without a result. errors: their file. rate:
    rows a second, from the first one to the last part. join_s: what the output took after that."""

    rows: int
    bad: int
    errors: str
    rate: float
    join_s: float


class BulkRun:
    """One run of a plan. progress: how far it is; None before it reads."""

    def __init__(self, plan: BulkPlan, socket: str) -> None:
        self.plan = plan
        self.progress: Progress | None = None
        self._socket = socket
        self._in = input_format(plan.inputs, plan.in_format)
        self._out = output_format(plan.out, plan.out_format)
        self._errors = plan.errors or ("" if plan.out == STDIN else f"{plan.out}.errors.jsonl")
        _check_extras(self._in, self._out)

    def run(self) -> BulkEnd:
        """Run all rows. StartError says why it stopped; what is committed stays."""
        plan = self.plan
        check_out(plan.inputs, plan.out)
        check_errors(plan.inputs, plan.out, self._errors)
        if plan.out != STDIN and not plan.restart:
            check_free(plan.out, "-o")
        reader = self._reader()
        try:
            driver = ThreadDriver(self._socket, _ATTACH_S, pinned=False)
        except PoolError as exc:
            raise StartError(
                f"{exc.message}; --socket or --port names another pool, and a MODEL as"
                " MODULE:CLASS starts one for this run"
            ) from None
        try:
            return self._run(reader, driver)
        except PoolError as exc:
            raise StartError(exc.message) from exc
        finally:
            driver.close()

    def _reader(self) -> Reader:
        plan = self.plan
        if self._in.name != "files":
            return self._in.reader(list(plan.inputs))
        reader = FileReader(plan.inputs, written_paths(plan.out, self._errors))
        check_files(reader.files, plan.out, self._errors)
        if plan.in_format is None:
            check_rows_of_folders(reader.files)
        return reader

    def _run(self, reader: Reader, driver: ThreadDriver) -> BulkEnd:
        plan = self.plan
        served = driver.models()
        name = plan.model or (next(iter(served)) if len(served) == 1 else "")
        try:
            facts = driver.facts(name)
        except NotFound as exc:
            raise ConfigError(exc.message) from None
        spec = facts.spec
        outputs = chosen_outputs(spec, plan.outputs)
        columns = mapped_columns(spec, reader.names, plan.columns)
        self._check_kept(reader, outputs)
        if isinstance(reader, TableReader):
            parts = [part for name in columns.values() for part in parts_of(name, reader.names)]
            reader.want([*parts, *plan.keep])
        try:
            check_parameters(spec, plan.parameters)
        except PoolError as exc:
            raise ConfigError(exc.message) from None
        writer = writer_of(self._out.name, [readable(tensor) for tensor in outputs], plan.keep)
        sink = (Streamed if plan.out == STDIN else Committed)(plan, writer, self._errors)
        manifest = self._manifest(reader, facts, columns)
        try:
            size = sink.begin(manifest, rows_of_a_chunk(spec, facts.max_batch))
        except BaseException:
            sink.close()
            raise
        start = sink.done * size
        self.progress = Progress(reader.total, min(start, reader.total or start))
        self.progress.bad = sink.bad
        self.progress.tell_there(sink.done, f"{plan.out}.parts")
        options = MapOptions(
            plan.parameters or None,
            [tensor.name for tensor in outputs],
            priority=PRIORITY,
            outage_s=plan.outage_s,
            first=start,
        )
        ahead = ReadAhead(reader, size, start)
        chunks = self._checked(spec, columns, ahead)
        pipeline = Pipeline(driver, spec, chunks, InputColumns(spec, columns), options)
        ends = pipeline.ends()
        try:
            for end in ends:
                self._check_end(end)
                sink.put(end, outputs)
                self.progress.add(end.chunk.n, len(end.bad), end.chunk.share)
                del end
            sink.settle()
            rate, settled_s = self.progress.rate(), _now_s()
            sink.finish()
        finally:
            ahead.stop()
            ends.close()
            sink.close()
            self.progress.close()
        join_s = _now_s() - settled_s
        return BulkEnd(self.progress.rows, self.progress.bad, self._errors, rate, join_s)

    def _check_kept(self, reader: Reader, outputs: Sequence[Tensor]) -> None:
        for name in self.plan.keep:
            if reader.names is not None and name not in reader.names:
                listed = ", ".join(map(repr, reader.names))
                raise ConfigError(f"--keep: there is no column {name!r}; {listed} are")
            if any(tensor.name == name for tensor in outputs):
                raise ConfigError(
                    f"--keep: column {name!r} has the name of an output; rename one of them, or"
                    " choose other outputs with --outputs"
                )

    def _checked(
        self, spec: ModelSpec, columns: dict[str, str], chunks: Iterable[Chunk]
    ) -> Iterator[Chunk]:
        for chunk in chunks:
            if chunk.start == 0:
                check_first_rows(spec, columns, self.plan.keep, chunk)
            yield chunk
            del chunk  # it is not held while the next one is read

    def _check_end(self, end: ChunkEnd) -> None:
        if not end.bad:
            return
        first = end.bad[0]
        plan = self.plan
        if not plan.skips:
            goes_on = plan.out != STDIN and not any(map(is_read_once, plan.inputs))
            raise StartError(
                f"{first.place()}: {first.message}; --on-error skip leaves such"
                f" rows out{' and goes on from here' if goes_on else ''}"
            )
        if end.chunk.start == 0 and len(end.bad) == end.chunk.n > 1:
            raise StartError(
                f"none of the first {counted(end.chunk.n)} can be run; the first, {first.source}:"
                f" {first.message}"
            )

    def _manifest(self, reader: Reader, facts: ModelFacts, columns: dict[str, str]) -> Manifest:
        plan = self.plan
        return {
            "form": FORM,
            "batchpool": _version(),
            "input": input_prints(list(plan.inputs), reader),
            "input_format": self._in.name,
            "output_format": self._out.name,
            "model": facts.spec.name,
            "model_tensors": tensors_print(facts.spec),
            "columns": columns,
            "kept_columns": list(plan.keep),
            "outputs": list(plan.outputs),
            "parameters": dict(plan.parameters),
            "chunk_rows": plan.chunk_rows,
            "errors": os.path.abspath(self._errors) if self._errors else "",
        }


def _version() -> str:
    try:
        return metadata.version("batchpool")
    except metadata.PackageNotFoundError:
        return "unknown"


def _check_extras(*formats: Format) -> None:
    """StartError that names the extra that a format needs and that is not installed."""
    for format in formats:
        if format.extra:
            try:
                arrow()
            except PoolError:
                raise StartError(
                    f"{format.name} files need pyarrow, which is not installed here:"
                    " pip install 'batchpool[bulk]'"
                ) from None
