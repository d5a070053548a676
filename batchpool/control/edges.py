"""The edges of the control channels: which messages one kind of process takes from another.

A receiver names its edge. A missing, unknown, ill-typed or out-of-range field is an
`InvalidMessage`, and so is a message that does not belong to the edge, or that came with another
number of descriptors than its struct names.
"""

from __future__ import annotations

import typing
from functools import cached_property
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from batchpool.control.batch_messages import (
    AppendToUpload,
    BatchFound,
    BatchList,
    BeginUpload,
    CancelBatch,
    CreateBatch,
    DeleteFile,
    DropUpload,
    EndUpload,
    FileFound,
    FileList,
    FilePiece,
    GetBatch,
    GetFile,
    ListBatches,
    ListFiles,
    ReadFile,
    UploadState,
)
from batchpool.control.messages import (
    Attach,
    Attached,
    Batches,
    Drain,
    DrainState,
    Facts,
    FrontendServing,
    GetBatches,
    GetFacts,
    GetStatus,
    LaneOpened,
    LeaveLane,
    Message,
    OpenLane,
    PlanChanged,
    Refused,
    Reload,
    ReloadReply,
    StatusReply,
)
from batchpool.control.process_messages import (
    AddBatcherLane,
    AddModel,
    AddWorker,
    AddWorkerLane,
    BatcherRunning,
    Begin,
    CloseLane,
    ConfigurationRead,
    Discovered,
    DiscoveryFailed,
    DrainBatcher,
    Drained,
    DropLane,
    EndSequences,
    EndWorker,
    EvictLane,
    LaneBroken,
    LaneClosed,
    MoveLanes,
    RemoveModel,
    ReturnSequences,
    SetDuty,
    SetLimits,
    StartBatcher,
    StartWorker,
    WorkerBroken,
    WorkerFailed,
    WorkerHandled,
    WorkerIdle,
    WorkerLost,
    WorkerReady,
)
from batchpool.control.task_messages import (
    CancelTask,
    CollectResult,
    DropLetters,
    GetTaskStatus,
    Letters,
    LettersChanged,
    ListLetters,
    ListTasks,
    LookAtTasks,
    MarkRead,
    ReplayLetters,
    SetTasks,
    StartTasks,
    SubmitTask,
    TaskList,
    TaskRefused,
    TaskResult,
    TasksFailed,
    TasksServing,
    TaskStates,
    TaskStatus,
    TaskSubmitted,
)

Received_co = TypeVar("Received_co", covariant=True)


class BadPacket(ValueError):
    """A packet that could not be read as a message."""


class InvalidMessage(BadPacket):
    """A complete packet that is no message of the edge that it came over."""


FromClient: TypeAlias = (
    Attach | GetFacts | OpenLane | LeaveLane | GetStatus | GetBatches | Reload | Drain
)
ToClient: TypeAlias = (
    Refused | Attached | Facts | LaneOpened | StatusReply | Batches | ReloadReply | DrainState
)
FromFrontend: TypeAlias = FromClient | FrontendServing
ToFrontend: TypeAlias = PlanChanged
ToBatcher: TypeAlias = (
    StartBatcher
    | AddModel
    | RemoveModel
    | AddBatcherLane
    | CloseLane
    | MoveLanes
    | EvictLane
    | AddWorker
    | WorkerLost
    | SetDuty
    | SetLimits
    | Begin
    | DrainBatcher
)
FromBatcher: TypeAlias = (
    BatcherRunning | LaneClosed | LaneBroken | WorkerBroken | WorkerHandled | WorkerIdle | Drained
)
ToWorker: TypeAlias = (
    StartWorker | AddWorkerLane | DropLane | EndSequences | ReturnSequences | EndWorker
)
FromWorker: TypeAlias = WorkerReady | WorkerFailed
FromDiscovery: TypeAlias = ConfigurationRead | Discovered | DiscoveryFailed
ToTaskProcess: TypeAlias = StartTasks | SetTasks
FromTaskProcess: TypeAlias = TasksServing | TasksFailed
ToBatches: TypeAlias = (
    BeginUpload
    | AppendToUpload
    | EndUpload
    | DropUpload
    | GetFile
    | ListFiles
    | ReadFile
    | DeleteFile
    | CreateBatch
    | GetBatch
    | ListBatches
    | CancelBatch
)
BatchReply: TypeAlias = UploadState | FileFound | FileList | FilePiece | BatchFound | BatchList
ToTasks: TypeAlias = (
    SubmitTask
    | LookAtTasks
    | CollectResult
    | MarkRead
    | CancelTask
    | GetTaskStatus
    | ListTasks
    | ListLetters
    | ReplayLetters
    | DropLetters
    | ToBatches
)
TaskReply: TypeAlias = (
    TaskRefused
    | TaskSubmitted
    | TaskStates
    | TaskResult
    | TaskStatus
    | TaskList
    | Letters
    | LettersChanged
    | BatchReply
)


class Edge(Generic[Received_co]):
    """The messages that one kind of process takes from another. name: "sender -> receiver"."""

    def __init__(self, name: str, messages: object) -> None:
        self.name = name
        self.messages: tuple[type[Message], ...] = typing.get_args(messages) or (messages,)
        self._union = messages

    @cached_property
    def _decoder(self) -> msgspec.msgpack.Decoder[Any]:
        """Made at the first message: all of them take 12 ms, and a process needs one to three."""
        return msgspec.msgpack.Decoder(self._union)

    def decode(self, raw: bytes | memoryview, descriptors: int) -> Received_co:
        """The message in a packet that came with this many descriptors. InvalidMessage if it is not
        one of this edge's; another exception if it is no msgpack."""
        if raw[0] & 0xF0 != 0x80 and raw[0] not in (0xDE, 0xDF):
            raise BadPacket("a control message is a map")
        try:
            message: Any = self._decoder.decode(raw)
        except msgspec.ValidationError as exc:
            raise InvalidMessage(f"{exc} (a message {self.name})") from None
        if descriptors != message.descriptor_count():
            raise InvalidMessage(
                f"{tag_of(type(message))!r} comes with {_descriptors_text(message)}, not"
                f" with {descriptors} descriptors"
            )
        return typing.cast(Received_co, message)


FROM_CLIENT: Edge[FromClient] = Edge("client -> supervisor", FromClient)
TO_CLIENT: Edge[ToClient] = Edge("supervisor -> client", ToClient)
FROM_FRONTEND: Edge[FromFrontend] = Edge("front end -> supervisor", FromFrontend)
TO_FRONTEND: Edge[ToFrontend] = Edge("supervisor -> front end", ToFrontend)
TO_BATCHER: Edge[ToBatcher] = Edge("supervisor -> batcher", ToBatcher)
FROM_BATCHER: Edge[FromBatcher] = Edge("batcher -> supervisor", FromBatcher)
TO_WORKER: Edge[ToWorker] = Edge("supervisor -> worker", ToWorker)
FROM_WORKER: Edge[FromWorker] = Edge("worker -> supervisor", FromWorker)
FROM_DISCOVERY: Edge[FromDiscovery] = Edge("discovery -> supervisor", FromDiscovery)
TO_TASK_PROCESS: Edge[ToTaskProcess] = Edge("supervisor -> task process", ToTaskProcess)
FROM_TASK_PROCESS: Edge[FromTaskProcess] = Edge("task process -> supervisor", FromTaskProcess)
TO_TASKS: Edge[ToTasks] = Edge("asker -> task process", ToTasks)
TASK_REPLIES: Edge[TaskReply] = Edge("task process -> asker", TaskReply)

EDGES: tuple[Edge[Any], ...] = (
    FROM_CLIENT, TO_CLIENT, FROM_FRONTEND, TO_FRONTEND, TO_BATCHER, FROM_BATCHER, TO_WORKER,
    FROM_WORKER, FROM_DISCOVERY, TO_TASK_PROCESS, FROM_TASK_PROCESS, TO_TASKS, TASK_REPLIES,
)  # fmt: skip


def tag_of(message: type[Message]) -> str:
    """The text that names a message in its packet."""
    return str(message.__struct_config__.tag)


def _descriptors_text(message: Message) -> str:
    count = message.descriptor_count()
    names = f": {', '.join(message.descriptors)}" if message.descriptors else ""
    return f"{count or 'no'} descriptor{'s' * (count != 1)}{names}"
