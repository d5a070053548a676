"""Files and batches as values: what is kept of them, and the order of a batch's statuses.

    validating -> in_progress -> finalizing -> completed
    validating -> failed
    validating, in_progress, finalizing -> cancelling -> cancelled
    in_progress -> finalizing -> expired       some of its lines came too late

Nothing here reads a clock or makes a system call; times are milliseconds of Unix time.
"""

from __future__ import annotations

import enum
import hashlib

import msgspec

from batchpool.control.batch_messages import BatchForm, FaultForm, FileForm

TOKEN_BYTES = 16
LOSSES_MOST = 20  # processes that end amid the same lines, after which a batch is given up
WINDOW_MS = 24 * 3600 * 1000  # of a batch, the only one that there is
_FILE, _BATCH = "file-", "batch_"


class BatchStatus(enum.StrEnum):
    """The status of a batch, as callers see it."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        return not MOVES[self]


_S = BatchStatus
MOVES: dict[BatchStatus, frozenset[BatchStatus]] = {
    _S.VALIDATING: frozenset({_S.IN_PROGRESS, _S.FAILED, _S.CANCELLING}),
    _S.IN_PROGRESS: frozenset({_S.FINALIZING, _S.FAILED, _S.CANCELLING}),
    _S.FINALIZING: frozenset({_S.COMPLETED, _S.EXPIRED, _S.FAILED, _S.CANCELLING}),
    _S.CANCELLING: frozenset({_S.CANCELLED}),
    _S.COMPLETED: frozenset(),
    _S.FAILED: frozenset(),
    _S.EXPIRED: frozenset(),
    _S.CANCELLED: frozenset(),
}


class Owner(msgspec.Struct, frozen=True):
    """The owner of a file or batch. principal: the name of its key, "" without keys: who else may
    see it. caller: whose share of the store it takes."""

    principal: str
    caller: str


class FileRecord(msgspec.Struct, frozen=True):
    """A file that is kept. bytes: its size."""

    id: str
    owner: Owner
    filename: str
    purpose: str
    bytes: int
    created_ms: int
    expires_ms: int

    def form(self) -> FileForm:
        """The file as its caller sees it."""
        return FileForm(
            self.id, self.filename, self.purpose, self.bytes, self.created_ms, self.expires_ms
        )


class BatchProgress(msgspec.Struct, frozen=True):
    """The place to which a batch has come. All is of the lines whose answers are on the disk.

    offset: bytes of the input.  lines: of the input, blank ones too.  completed, failed: requests.
    late: of the failed ones, those that came too late.  output_bytes, error_bytes: of the files.
    """

    offset: int = 0
    lines: int = 0
    completed: int = 0
    failed: int = 0
    late: int = 0
    output_bytes: int = 0
    error_bytes: int = 0


class BatchRecord(msgspec.Struct, frozen=True):
    """A batch that is kept. times_ms: when it came to each status but the first. drop_ms: when its
    record is dropped, 0 while it is open. output_ttl_ms: how long its files are kept. losses:
    processes that have ended amid its lines since one counted last. run_by: the process that runs
    them, or did."""

    id: str
    owner: Owner
    endpoint: str
    input_file: str
    created_ms: int
    expires_ms: int
    output_ttl_ms: int
    status: BatchStatus = BatchStatus.VALIDATING
    times_ms: dict[str, int] = {}
    metadata: dict[str, str] | None = None
    total: int = 0
    progress: BatchProgress = BatchProgress()
    faults: tuple[FaultForm, ...] = ()
    has_files: bool = False
    drop_ms: int = 0
    losses: int = 0
    run_by: str = ""

    @property
    def output_file(self) -> str:
        """The id of the file with the good answers."""
        return _derived(self.id, "output")

    @property
    def error_file(self) -> str:
        """The id of the file with the other lines."""
        return _derived(self.id, "errors")

    def run_in(self, process: str) -> BatchRecord:
        """The batch as a process runs its lines: another one before it has ended without saying
        so."""
        losses = self.losses + (self.run_by not in ("", process))
        return msgspec.structs.replace(self, losses=losses, run_by=process)

    def left(self) -> BatchRecord:
        """The batch as its process leaves it to the next one."""
        return msgspec.structs.replace(self, run_by="")

    def at(self, status: BatchStatus, now_ms: int) -> BatchRecord:
        """The batch in another status. ValueError for one that does not follow."""
        if status not in MOVES[self.status]:
            raise ValueError(f"a batch that is {self.status} cannot become {status}")
        times_ms = {**self.times_ms, status.value: now_ms}
        return msgspec.structs.replace(self, status=status, times_ms=times_ms)

    def form(self, waiting_for: str = "") -> BatchForm:
        """The batch as its caller sees it. waiting_for: what keeps it from going on."""
        progress, shown = self.progress, self.has_files
        return BatchForm(
            self.id, self.endpoint, self.input_file, self.status.value,
            self.created_ms, self.expires_ms, self.times_ms,
            self.total, progress.completed, progress.failed,
            self.output_file if shown and progress.output_bytes else "",
            self.error_file if shown and progress.error_bytes else "",
            self.metadata, self.faults, waiting_for,
        )  # fmt: skip


def file_id(token: bytes) -> str:
    """The id of the file of an upload. token: 16 bytes that no other one has."""
    return _FILE + token.hex()


def batch_id(token: bytes) -> str:
    """The id of a batch. token: 16 bytes that no other one has."""
    return _BATCH + token.hex()


def _derived(batch: str, part: str) -> str:
    return file_id(hashlib.sha256(f"{batch} {part}".encode()).digest()[:TOKEN_BYTES])
