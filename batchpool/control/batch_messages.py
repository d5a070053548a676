"""Messages about OpenAI's files and batches between front ends and the task process.

They travel over the socket of the task process as those of `batchpool/control/task_messages.py`.
Times are milliseconds of Unix time, 0 for what has not come. Ids of files and batches come from a
token that the front end has made, so that a question that is asked twice makes one of them.
principal: the name of the caller's key, "" without keys. caller: whose share of the store it takes.
"""

from __future__ import annotations

from batchpool.control.messages import Form, Message, Natural


class FileForm(Form, frozen=True):
    """A file as its caller sees it. expires_ms: when it is dropped."""

    id: str
    filename: str
    purpose: str
    bytes: Natural
    created_ms: Natural
    expires_ms: Natural


class FaultForm(Form, frozen=True):
    """A fault of a batch's input. line: in the file, from 1; 0 for the file as a whole."""

    code: str
    message: str
    param: str = ""
    line: Natural = 0


class BatchForm(Form, frozen=True):
    """A batch as its caller sees it. status: a `BatchStatus`. total, completed, failed: lines.
    output_file, error_file: "" for none. waiting_for: what keeps it from going on, "" for
    nothing."""

    id: str
    endpoint: str
    input_file: str
    status: str
    created_ms: Natural
    expires_ms: Natural
    times_ms: dict[str, Natural]
    total: Natural = 0
    completed: Natural = 0
    failed: Natural = 0
    output_file: str = ""
    error_file: str = ""
    metadata: dict[str, str] | None = None
    faults: tuple[FaultForm, ...] = ()
    waiting_for: str = ""


class BatchCounts(Form, frozen=True):
    """The counts of files and batches. statuses: {status: batches} of those that are kept. lines:
    {"completed" or "failed": lines} since the start of the process. files, bytes: that are kept,
    with what is under way."""

    statuses: dict[str, Natural]
    lines: dict[str, Natural]
    files: Natural
    bytes: Natural


class BatchQuestion(Message, frozen=True):
    """A question about files or batches."""


# -- front end -> task process ----------------------------------------------------------------


class BeginUpload(BatchQuestion, frozen=True, tag="begin_upload"):
    """Begins a file. announced: bytes that the caller says will come, 0 where it says nothing."""

    token: bytes
    principal: str
    caller: str
    announced: Natural = 0


class AppendToUpload(BatchQuestion, frozen=True, tag="append_to_upload"):
    """More bytes of a file. offset: of the first of them."""

    id: str
    offset: Natural
    piece: bytes


class EndUpload(BatchQuestion, frozen=True, tag="end_upload"):
    """All bytes of a file have come: it is kept. ttl_ms: 0 for the server's own."""

    id: str
    filename: str
    purpose: str
    bytes: Natural
    ttl_ms: Natural = 0


class DropUpload(BatchQuestion, frozen=True, tag="drop_upload"):
    """The caller of an upload has gone, or was refused."""

    id: str


class GetFile(BatchQuestion, frozen=True, tag="get_file"):
    """Asks for a file's facts."""

    id: str
    principal: str


class ListFiles(BatchQuestion, frozen=True, tag="list_files"):
    """Asks for files, the newest first unless oldest_first. after: those behind this one. purpose:
    of those alone, "" for all."""

    principal: str
    after: str = ""
    most: Natural = 100
    purpose: str = ""
    oldest_first: bool = False


class ReadFile(BatchQuestion, frozen=True, tag="read_file"):
    """Asks for bytes of a file, from `offset` and at most `most` of them."""

    id: str
    principal: str
    offset: Natural
    most: Natural


class DeleteFile(BatchQuestion, frozen=True, tag="delete_file"):
    """Drops a file. A file that is the input of an open batch is kept, and this is refused."""

    id: str
    principal: str


class CreateBatch(BatchQuestion, frozen=True, tag="create_batch"):
    """Makes a batch of an input file. ttl_ms: of its output files, 0 for the server's own."""

    token: bytes
    principal: str
    caller: str
    endpoint: str
    input_file: str
    metadata: dict[str, str] | None = None
    ttl_ms: Natural = 0


class GetBatch(BatchQuestion, frozen=True, tag="get_batch"):
    """Asks for a batch."""

    id: str
    principal: str


class ListBatches(BatchQuestion, frozen=True, tag="list_batches"):
    """Asks for batches, the newest first. after: those behind this one."""

    principal: str
    after: str = ""
    most: Natural = 20


class CancelBatch(BatchQuestion, frozen=True, tag="cancel_batch"):
    """Ends a batch, which keeps the lines that are done."""

    id: str
    principal: str


# -- task process -> front end ----------------------------------------------------------------


class UploadState(Message, frozen=True, tag="upload"):
    """The reply about an upload. id: of the file that it becomes."""

    id: str


class FileFound(Message, frozen=True, tag="file"):
    """The reply with a file's facts."""

    file: FileForm


class FileList(Message, frozen=True, tag="files"):
    """The reply to `ListFiles`. has_more: there are others behind these."""

    files: tuple[FileForm, ...]
    has_more: bool


class FilePiece(Message, frozen=True, tag="file_piece"):
    """The reply to `ReadFile`. piece: fewer bytes than were asked for at the file's end alone."""

    piece: bytes


class BatchFound(Message, frozen=True, tag="batch"):
    """The reply with a batch."""

    batch: BatchForm


class BatchList(Message, frozen=True, tag="batches_found"):
    """The reply to `ListBatches`. has_more: there are others behind these."""

    batches: tuple[BatchForm, ...]
    has_more: bool
