"""The table of all metrics: name, kind, unit, help, labels, buckets, and the writer of each.

Counts are 64-bit words in the pool's counters (core/metrics/segments.py). Each word has one writer;
a reader adds up the words of all writers. The place of a word follows from this table: a writer
has one block of words, or one for each model, with its metrics in the table's order.

    writer      its blocks                          contents
    batcher     one for each stage of each entry    rows, batches, waits
    frontend    one for each front end and entry    HTTP requests
    worker      one for each worker slot            batches, rows, time in the model
    supervisor  one for each model entry            lanes of front ends and of local clients
    process     one for each process                processes; the supervisor writes these
    pool        one                                 the pool's state; the supervisor writes it
    reader      none                                values that are computed at the time of reading

A block outlives the process that writes it; the process that replaces it goes on counting there.
A counter has a word, or one for each of its `cases`. A histogram has one word for each bucket,
which counts the values above the bucket before, one for the values above all buckets, and one for
the sum. Words hold whole numbers: times are nanoseconds there and seconds, by `per_unit`, where
they are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from batchpool.core.errors import all_errors
from batchpool.core.layout.states import DispatchReason, PoolState

PREFIX = "batchpool_"
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
_LINE_WORDS = 16  # blocks of two writers never share two cache lines

TIME_BOUNDS_S = (
    *(0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60),
)
_TIME_NS = tuple(round(bound * 1e9) for bound in TIME_BOUNDS_S)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)
_NS_PER_S = 10**9

# Values of the label `road`, counted in frontend/fast/request.py, frontend/asgi/app.py and
# embeddings.py, and, for bytes that are no HTTP request, frontend/http/connection.py.
FRONTEND_PATHS = ("fast", "asgi", "none")
CLIENTS = ("http", "local")
# (code, reason) of every response to an infer request; several errors may have the same.
HTTP_OUTCOMES = (
    ("200", "ok"),
    *dict.fromkeys((str(kind.status), kind.code) for kind in all_errors()),
)
ROW_OUTCOMES = (
    *("ok", "model_error", "worker_lost", "deadline_exceeded", "cancelled", "overloaded"),
    *("client_gone", "not_ready", "invalid_input", "too_large"),
)
RETRIES = ("model_error", "worker_lost", "no_memory", "not_started", "invalid_input", "returned")
REASONS = tuple(reason.name.lower() for reason in DispatchReason)
BATCH_OUTCOMES = ("ok", "failed", "no_memory", "invalid_input", "returned", "lost")
TOKEN_KINDS = ("prompt", "generated")
SEQUENCE_ENDS = (
    *("stop", "length", "cancelled", "deadline_exceeded", "model_error", "invalid_input"),
    "returned",
)


@dataclass(frozen=True)
class Metric:
    """The definition of one metric.

    writer: the kind of process that writes it.  labels: the names of the labels that tell its
    `cases` apart; the writer's own labels come before them.  bounds: of a histogram's buckets, in
    the unit of the words.  per_unit: so many of the words' units make one unit of the name.
    most: of blocks with equal labels, as while a reload replaces a worker, the largest value
    counts instead of the sum.  always: a gauge that is shown for dead processes too.  lasting: a
    gauge of something past, shown for dead processes and, as the largest value, for earlier entries
    of the same name too.
    """

    name: str
    kind: str
    writer: str
    help: str
    labels: tuple[str, ...] = ()
    cases: tuple[tuple[str, ...], ...] = ((),)
    bounds: tuple[int, ...] = ()
    per_unit: int = 1
    most: bool = False
    always: bool = False
    lasting: bool = False

    @property
    def label_names(self) -> tuple[str, ...]:
        """All label names, those of the writer first."""
        return OWN_LABELS[self.writer] + self.labels

    @property
    def words_each(self) -> int:
        """The words of one case."""
        return len(self.bounds) + 2 if self.kind == HISTOGRAM else 1

    @property
    def words(self) -> int:
        return self.words_each * len(self.cases)


def _cases(values: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    return tuple((value,) for value in values)


def _counter(
    name: str,
    writer: str,
    text: str,
    labels: tuple[str, ...] = (),
    cases: tuple[tuple[str, ...], ...] = ((),),
) -> Metric:
    return Metric(f"{PREFIX}{name}_total", COUNTER, writer, text, labels, cases)


def _gauge(
    name: str,
    writer: str,
    text: str,
    labels: tuple[str, ...] = (),
    cases: tuple[tuple[str, ...], ...] = ((),),
    *,
    most: bool = False,
) -> Metric:
    return Metric(PREFIX + name, GAUGE, writer, text, labels, cases, most=most)


def _times(name: str, writer: str, text: str) -> Metric:
    return Metric(
        f"{PREFIX}{name}_seconds", HISTOGRAM, writer, text, bounds=_TIME_NS, per_unit=_NS_PER_S
    )


def _sizes(name: str, text: str, bounds: tuple[int, ...]) -> Metric:
    return Metric(PREFIX + name, HISTOGRAM, "batcher", text, bounds=bounds)


# The labels of a writer's blocks.
OWN_LABELS: dict[str, tuple[str, ...]] = {
    "batcher": ("model", "stage"),
    "frontend": ("model",),
    "worker": ("model", "worker", "device", "stage"),
    "supervisor": ("model",),
    "process": ("process",),
    "pool": (),
    "reader": (),
}

METRICS: tuple[Metric, ...] = (
    _counter(
        "http_requests",
        "frontend",
        "infer requests answered over HTTP, by path through the front end (road), status and code;"
        " 499: the caller went away first; a request that was no HTTP has road none and no model",
        ("road", "code", "reason"),
        tuple((road, *answer) for road, answer in product(FRONTEND_PATHS, HTTP_OUTCOMES)),
    ),
    _times(
        "http_request",
        "frontend",
        "from a request's complete headers to its answer, of those answered 200",
    ),
    Metric(
        f"{PREFIX}http_failed_seconds_total", COUNTER, "frontend",
        "from a request's complete headers to its answer, of those answered otherwise than 200,"
        " or to the time its caller went away",
        per_unit=_NS_PER_S,
    ),
    _counter("rows_admitted", "batcher", "rows that the batcher took from lanes"),
    _counter(
        "rows_ended",
        "batcher",
        "rows that are done; ok: their batch ran, though single outputs may not have fitted;"
        " invalid_input: the model refused them (bp.InvalidInput); client_gone: their client died"
        " first; too_large: no worker of the generator can ever hold so many tokens",
        ("reason",),
        _cases(ROW_OUTCOMES),
    ),
    _counter(
        "rows_retried",
        "batcher",
        "rows that were put back to run again, by what became of their batch",
        ("reason",),
        _cases(RETRIES),
    ),
    _counter(
        "batches", "batcher", "batches sent to workers, by why they left", ("reason",),
        _cases(REASONS),
    ),
    _counter(
        "batches_finished", "batcher",
        "batches that came back, and how; invalid_input: the model refused one of several rows"
        " without naming it, so they ran again in parts; returned: a worker that goes off duty gave"
        " a sequence back; a sequence of a generator is a batch of one row", ("outcome",),
        _cases(BATCH_OUTCOMES),
    ),
    _sizes("batch_rows", "rows of a batch, without padding", _ROWS),
    _counter(
        "batch_extents", "batcher",
        "runs of neighbouring slots in batches that came back: what a worker copies at once",
    ),
    _times(
        "queue", "batcher",
        "from a row's submission, or the end of its stage before, to the dispatch of its batch",
    ),
    _times("batch", "batcher", "from a batch's dispatch to its completion, way and all"),
    Metric(
        f"{PREFIX}last_inference_timestamp_seconds", GAUGE, "batcher",
        "when a batch last came back with its outputs, Unix time; 0 before the first",
        per_unit=_NS_PER_S, most=True, lasting=True,
    ),
    _gauge("queue_rows", "batcher", "rows that wait in the batcher"),
    _gauge(
        "batch_rows_limit", "batcher", "most rows of a batch, as learnt from the device", most=True
    ),
    _counter(
        "worker_batches", "worker", "batches that a worker ran, and how they ended", ("outcome",),
        _cases(BATCH_OUTCOMES[:-1]),
    ),
    _counter(
        "worker_rows", "worker", "rows that a worker ran, without padding", ("outcome",),
        _cases(("ok", "failed", "invalid_input")),
    ),
    _times(
        "worker_gather", "worker",
        "a batch's inputs, put together before the model is called; copies to a GPU are only"
        " begun here",
    ),
    _times(
        "worker_compute", "worker",
        "from the call of infer to its outputs on the host; on a GPU batches overlap",
    ),
    _times("worker_scatter", "worker", "a batch's outputs, checked and written into lanes"),
    _counter(
        "worker_tokens", "worker",
        "tokens of a generator's sequences; prompt: of those that joined, what a lost worker had"
        " made of them among it; generated: made here", ("kind",), _cases(TOKEN_KINDS),
    ),
    _counter(
        "worker_sequences", "worker",
        "sequences of a generator that ended in this worker, by how; returned: to go on in the"
        " worker that takes this one's place", ("reason",), _cases(SEQUENCE_ENDS),
    ),
    _counter(
        "worker_sequences_resumed", "worker",
        "sequences that joined with tokens which another worker had made",
    ),
    _gauge("worker_sequences_running", "worker", "sequences of a generator that run now"),
    _gauge(
        "worker_kv_tokens_reserved", "worker",
        "tokens that are set aside for the sequences that run, their prompts among them",
    ),
    _times("worker_step", "worker", "one call of `step` of a generator"),
    _times(
        "worker_first_token", "worker",
        "from a row's submission to its sequence's first token; of those begun in this worker",
    ),
    _times(
        "worker_token_gap", "worker",
        "between two steps that made tokens of one sequence, which is what a reader waits",
    ),
    _gauge("lanes", "supervisor", "lanes that are open", ("client",), _cases(CLIENTS)),
    _gauge("lane_slots", "supervisor", "slots of these lanes", ("client",), _cases(CLIENTS)),
    _gauge(
        "lane_claimed_slots", "supervisor",
        "slots of these lanes that are in use; up to 0.25 s old", ("client",), _cases(CLIENTS),
    ),
    _counter(
        "claims_refused", "supervisor",
        "claims of slots that were refused, because the lane or its input arena was above its"
        " watermark (full) or the caller above its share of it (share); up to 0.25 s old",
        ("client", "reason"),
        (("http", "full"), ("http", "share"), ("local", "full")),
    ),
    _gauge("model_workers", "supervisor", "workers that are warm"),
    Metric(
        f"{PREFIX}process_up", GAUGE, "process", "1 while the process is there and works, else 0",
        most=True, always=True,
    ),
    _gauge("process_pid", "process", "the process's id", most=True),
    Metric(
        f"{PREFIX}process_start_time_seconds", GAUGE, "process", "when it was started, Unix time",
        per_unit=_NS_PER_S, most=True,
    ),
    _counter("process_restarts", "process", "processes started in another's place"),
    _gauge(
        "pool_state", "pool", "1 for the state that the pool is in", ("state",),
        _cases(tuple(state.name.lower() for state in PoolState)),
    ),
    _counter(
        "reloads", "pool", "reloads, by how they ended; failed: undone, or nothing was changed",
        ("outcome",), _cases(("done", "failed")),
    ),
    Metric(
        f"{PREFIX}last_reload_timestamp_seconds", GAUGE, "pool",
        "when the last reload ended, Unix time; 0 before the first", per_unit=_NS_PER_S,
    ),
    _gauge(
        "build_info", "reader", "1; the versions, and `code`: compiled or interpreted",
        ("version", "python", "code"),
    ),
    _gauge("gpu_memory_used_bytes", "reader", "memory in use, by anybody", ("device", "name")),
    _gauge("gpu_memory_total_bytes", "reader", "memory of the device", ("device", "name")),
    _gauge(
        "gpu_utilization_ratio", "reader",
        "share of the last sample period in which a kernel ran", ("device", "name"),
    ),
    _gauge(
        "tasks", "reader", "tasks that are kept, by state; the others are gone", ("model", "state"),
    ),
    _counter(
        "tasks_submitted", "reader",
        "tasks that were taken; this and the counts of tasks below begin anew with each task"
        " process",
    ),
    _counter(
        "tasks_replayed", "reader",
        "requests that were answered with an earlier task, by their Idempotency-Key",
    ),
    _counter("tasks_reclaimed", "reader", "tasks whose process ended before they did"),
    _counter(
        "tasks_duplicate", "reader",
        "results that were refused, as their task was taken back, too old or another process's",
    ),
    _counter(
        "tasks_refused", "reader",
        "new tasks that were refused with 503 or 507, by the limit that they met: of open tasks"
        " (full, share_full), of bytes (bytes_full, bytes_share_full), of the disk (disk_full)",
        ("reason",),
    ),
    _counter(
        "dead_letters", "reader", "tasks that failed for good, by the error's code",
        ("model", "code"),
    ),
    _gauge("dead_letters_kept", "reader", "dead letters that are kept"),
    Metric(
        f"{PREFIX}task_oldest_seconds", GAUGE, "reader", "age of the oldest task that is not done",
        per_unit=_NS_PER_S,
    ),
    _gauge("task_store_bytes", "reader", "bytes of all inputs, results and dead letters"),
    Metric(
        f"{PREFIX}task_seconds", HISTOGRAM, "reader",
        "from a task's submission to its end", ("model",), bounds=_TIME_NS, per_unit=_NS_PER_S,
    ),
    _times("task_commit", "reader", "one commit of the store of tasks, with all that it holds"),
    _gauge("batches_kept", "reader", "batches of files that are kept, by status", ("state",)),
    _counter(
        "batch_lines", "reader",
        "lines of OpenAI's batches that have an answer (completed) or an error (failed); begins"
        " anew with each task process", ("outcome",),
    ),
    _gauge("files", "reader", "files that are kept for OpenAI's batches, or arrive"),
    _gauge("file_bytes", "reader", "bytes of these files, those that arrive or grow too"),
)  # fmt: skip

BY_NAME = {metric.name: metric for metric in METRICS}


def metric_of(name: str) -> Metric:
    """The metric of this name, with the prefix or without."""
    return BY_NAME[name if name.startswith(PREFIX) else PREFIX + name]


class Block:
    """The places of one writer's metrics in its blocks.

    at[name]: the offset of the metric's first word.  size: the words of the block, in whole lines.
    lasting: the offsets of the words of lasting gauges.
    """

    def __init__(self, writer: str) -> None:
        self.metrics = tuple(metric for metric in METRICS if metric.writer == writer)
        self.at: dict[str, int] = {}
        end = 0
        for metric in self.metrics:
            self.at[metric.name] = end
            end += metric.words
        self.lasting = frozenset(
            at
            for metric in self.metrics
            if metric.lasting
            for at in range(self.at[metric.name], self.at[metric.name] + metric.words)
        )
        self.used = end
        self.size = -(-end // _LINE_WORDS) * _LINE_WORDS

    def word(self, name: str, *case: str) -> int:
        """The offset of the (first) word of one case of a metric."""
        metric = metric_of(name)
        return self.at[metric.name] + metric.cases.index(case) * metric.words_each


BLOCKS = {writer: Block(writer) for writer in OWN_LABELS if writer != "reader"}
