"""Messages of the task process: with the front ends and the command line over its unix socket, and
with the supervisor.

Each is a struct as in `batchpool/control/messages.py`; over the socket they travel in the frames of
`batchpool/control/frames.py`. Times are milliseconds of Unix time, 0 for what has not come yet.
"""

from __future__ import annotations

from typing import Any

import msgspec

from batchpool.control.batch_messages import BatchCounts
from batchpool.control.messages import Form, Message, Natural


class TaskForm(Form, frozen=True):
    """A task as its caller sees it. state: a `TaskState` in lower case, or `expired` or `not_found`
    for a task that is not there. code, error: of one that has failed."""

    id: str
    state: str
    model: str = ""
    attempts: Natural = 0
    submitted_ms: Natural = 0
    started_ms: Natural = 0
    finished_ms: Natural = 0
    code: str = ""
    error: str = ""


class LetterForm(Form, frozen=True):
    """A dead letter. letter: its number. facts: what is known of the error beside its text, as
    batch, worker, worker_pid and, but in a list, the model's traceback. input, answer: as in
    `SubmitTask`, empty in a list."""

    letter: Natural
    id: str
    model: str
    code: str
    error: str
    attempts: Natural
    rows: Natural
    submitted_ms: Natural
    died_ms: Natural
    caller: str
    facts: dict[str, Any]
    input: bytes = b""
    answer: bytes = b""


# -- front end, command line -> task process --------------------------------------------------


class SubmitTask(Message, frozen=True, tag="submit_task"):
    """Asks for a task. token: 16 bytes that no other task has; the same again is the same task.
    input: `batchpool/wire/task_form.py` packs it. answer: how the result is to be written.
    principal: the name of the caller's key, "" without keys. key: of Idempotency-Key, "" for none.
    timeout_ms: the caller's own limit, 0 for none. origin: whose turns and share of the store
    it takes, "" for the caller's own."""

    token: bytes
    submitted_ms: Natural
    model: str
    rows: Natural
    input: msgspec.Raw
    answer: msgspec.Raw
    caller: str
    principal: str = ""
    key: str = ""
    timeout_ms: Natural = 0
    origin: str = ""


class LookAtTasks(Message, frozen=True, tag="look"):
    """Asks for the states of tasks. wait_ms: the reply may wait so long for the end of the first
    of them."""

    ids: tuple[str, ...]
    principal: str = ""
    wait_ms: Natural = 0


class CollectResult(Message, frozen=True, tag="collect"):
    """Asks for the result of a task. It counts as read when `MarkRead` says so, since the caller
    may have gone when the task ends. wait_ms: the reply may wait so long for that end."""

    id: str
    principal: str = ""
    wait_ms: Natural = 0


class MarkRead(Message, frozen=True, tag="mark_read"):
    """The callers of these tasks have their results. The reply is `TaskStates` of none."""

    ids: tuple[str, ...]


class CancelTask(Message, frozen=True, tag="cancel"):
    """Takes back an open task, or drops one that has ended."""

    id: str
    principal: str = ""


class GetTaskStatus(Message, frozen=True, tag="task_status"):
    """Asks for the counts of all tasks."""


class ListTasks(Message, frozen=True, tag="list_tasks"):
    """Asks for the newest tasks. state, model: of those alone, "" for all."""

    state: str = ""
    model: str = ""
    most: Natural = 100


class ListLetters(Message, frozen=True, tag="list_letters"):
    """Asks for dead letters, the newest first. before: those with smaller numbers, 0 for all.
    whole: with their inputs."""

    model: str = ""
    code: str = ""
    before: Natural = 0
    most: Natural = 100
    whole: bool = False
    ids: tuple[str, ...] = ()


class ReplayLetters(Message, frozen=True, tag="replay"):
    """Makes new tasks of dead letters, which are then gone."""

    letters: tuple[Natural, ...]


class DropLetters(Message, frozen=True, tag="drop"):
    """Drops dead letters."""

    letters: tuple[Natural, ...]


# -- task process -> front end, command line --------------------------------------------------


class TaskRefused(Message, frozen=True, tag="task_refused"):
    """The reply to a request that is refused. code: of the error. param: the member of the request
    that is at fault, "" for none."""

    code: str
    error: str
    retry_after_ms: Natural = 0
    param: str = ""


class TaskSubmitted(Message, frozen=True, tag="task_submitted"):
    """The task is kept, whatever dies now. replayed: by an earlier request with this key."""

    task: TaskForm
    replayed: bool = False


class TaskStates(Message, frozen=True, tag="task_states"):
    """The states of tasks, in the order of the request."""

    tasks: tuple[TaskForm, ...]


class TaskResult(Message, frozen=True, tag="task_result"):
    """The result of a task: an HTTP answer. status: 0 where there is none."""

    task: TaskForm
    status: Natural = 0
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""


class TaskStatus(Message, frozen=True, tag="task_status"):
    """The reply to `GetTaskStatus`. tasks: {model: {state: count}} of those that are kept. counts:
    events since the start of the process. times: words of histograms as in
    `batchpool/core/metrics/table.py`, by name and model. letters: {model: {code: count}} since the
    start of the process; kept: dead letters that are kept. batches: None where there are none.
    refusals: of new tasks, by the limit of the store that they met."""

    tasks: dict[str, dict[str, int]]
    letters: dict[str, dict[str, int]]
    kept_letters: Natural
    oldest_s: float
    store_bytes: Natural
    counts: dict[str, int]
    times: dict[str, dict[str, list[int]]]
    store: str = ""
    batches: BatchCounts | None = None
    refusals: dict[str, int] = {}


class TaskList(Message, frozen=True, tag="task_list"):
    """The reply to `ListTasks`."""

    tasks: tuple[TaskForm, ...]


class Letters(Message, frozen=True, tag="letters"):
    """The reply to `ListLetters`."""

    letters: tuple[LetterForm, ...]


class LettersChanged(Message, frozen=True, tag="letters_changed"):
    """The reply to `ReplayLetters` and `DropLetters`. ids: {number of the letter: id of the new
    task, "" for a dropped one}; letters that are not there are left out."""

    ids: dict[int, str]


# -- supervisor -> task process ---------------------------------------------------------------


class StartTasks(Message, frozen=True, tag="start"):
    """The first message of the task process. server: the settings. folder: of its store. socket: of
    the pool. processes, heartbeat: of the heartbeats page and its own word there. batch_folder: of
    files and batches, "" where callers may have none."""

    descriptors = (
        "the socket on which it is asked",
        "the heartbeats",
        "the tracebacks of the workers, read-only",
    )

    server: dict[str, Any]
    folder: str
    socket: str
    processes: Natural
    heartbeat: Natural
    batch_folder: str = ""


class SetTasks(Message, frozen=True, tag="set"):
    """Settings as a reload has made them."""

    stall_timeout_s: float
    log_level: str


# -- task process -> supervisor ---------------------------------------------------------------


class TasksServing(Message, frozen=True, tag="tasks_serving"):
    """The store is open, and the socket is served."""


class TasksFailed(Message, frozen=True, tag="tasks_failed"):
    """The task process is about to end. error: the reason in one line."""

    error: str
