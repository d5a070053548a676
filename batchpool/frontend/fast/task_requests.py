"""Requests about tasks on the fast path: a new task, and the state or the result of one.

The task process answers them, without an ASGI task in between. What is seldom or large stays for
ASGI: long bodies, `Prefer: wait`, other spellings of a path, and methods other than GET and POST.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from batchpool.control.edges import TaskReply, ToTasks
from batchpool.control.task_messages import (
    CollectResult,
    LookAtTasks,
    TaskResult,
    TaskStates,
    TaskSubmitted,
)
from batchpool.core.errors import PoolError
from batchpool.frontend.fast.request import FastConnection, FastPath, FastRequest
from batchpool.frontend.http.memory_budget import MemoryReservation
from batchpool.frontend.http.response import LONG_BODY_BYTES, HttpResponse
from batchpool.frontend.service.task_answers import (
    accepted_response,
    result_response,
    state_response,
)
from batchpool.frontend.service.task_link import TaskLink, expected
from batchpool.frontend.service.task_submission import task_message
from batchpool.wire.preferences import MOST_WAIT_S
from batchpool.wire.request import Body

LONGEST_BODY_BYTES = 64 * 1024
TASKS_PATH = b"/v2/tasks/"
_URL = re.compile(rb"/v2/tasks/(t_[0-9a-v]{39})(/result)?(?:\?wait_s=([0-9]{1,2}))?")


class TaskQuestion(NamedTuple):
    """A GET of a task. is_result: of its result, else of its state."""

    task: str
    is_result: bool
    wait_s: int


def task_question(url: bytes) -> TaskQuestion | None:
    """The question in a path with its query; None for any that is for ASGI."""
    found = _URL.fullmatch(url)
    if found is None:
        return None
    wait_s = int(found[3] or 0)
    if wait_s > MOST_WAIT_S:
        return None
    return TaskQuestion(found[1].decode(), found[2] is not None, wait_s)


class FastTaskRequest(FastRequest):
    """One request that the task process answers. link: to it. prefix: of every path, as a proxy
    shows it."""

    __slots__ = ("_number", "link", "prefix")

    def __init__(
        self,
        connection: FastConnection,
        shared: FastPath,
        keep_alive: bool,
        link: TaskLink,
        prefix: str,
    ) -> None:
        super().__init__(connection, shared, keep_alive)
        self.link = link
        self.prefix = prefix
        self._number = 0  # of its question, while it is not answered

    def ask(self, message: ToTasks, wait_s: int) -> None:
        """Have the task process answer."""
        self._number = self.link.send(message, self._answered, wait_s)

    def _answered(self, found: TaskReply | PoolError) -> None:
        self._number = 0
        self.release()
        try:
            if isinstance(found, PoolError):
                raise found
            response = self.response(found)
        except Exception as exc:
            self.refuse(exc)
        else:
            self.respond(response)

    def response(self, found: TaskReply) -> HttpResponse:
        """The response for a reply of the task process; raises what refuses the request."""
        raise NotImplementedError

    def release(self) -> None:
        """Give back what was held while the task process had the question."""

    def is_waiting(self) -> bool:
        return self._number != 0

    def abandon(self) -> None:
        self.link.forget(self._number)
        self._number = 0
        self.release()
        self.count_gone()


class FastSubmission(FastTaskRequest):
    """A new task. held: the bytes of its body, until the task is kept. key: its Idempotency-Key."""

    __slots__ = ("_held", "_key", "_n")

    def begin(self, held: MemoryReservation, key: str) -> None:
        """Know what the head has said."""
        self._held = held
        self._key = key
        self._n = 0

    def admit(self) -> None:
        """No lane is asked: a task waits for room where a request would be refused."""
        self.head.admitted = True

    def submit_body(self, body: Body) -> None:
        endpoint, head = self.endpoint, self.head
        try:
            self._held.grow_to(len(body))
            request = endpoint.parse(head, body)
            self._n = request.rows.n
            self.ask(task_message(endpoint, head, request, self._key), 0)
        except Exception as exc:
            self.release()
            self.refuse(exc)

    def response(self, found: TaskReply) -> HttpResponse:
        submitted = expected(found, TaskSubmitted)
        return accepted_response(submitted.task, self.prefix, replayed=submitted.replayed)

    def release(self) -> None:
        self._held.release()

    def rows(self) -> int:
        return self._n


class FastTaskQuestion(FastTaskRequest):
    """The state or the result of a task."""

    __slots__ = ("_question",)
    method = "GET"

    def begin(self, question: TaskQuestion) -> None:
        """Know what is asked."""
        self._question = question

    def admit(self) -> None:
        """It has no body."""
        self.head.admitted = True

    def submit_body(self, body: Body) -> None:
        question, principal = self._question, self.head.caller.key
        wait_ms = question.wait_s * 1000
        message: ToTasks
        if question.is_result:
            message = CollectResult(question.task, principal, wait_ms)
        else:
            message = LookAtTasks((question.task,), principal, wait_ms)
        self.ask(message, question.wait_s)

    def response(self, found: TaskReply) -> HttpResponse:
        if not self._question.is_result:
            return state_response(expected(found, TaskStates).tasks[0], self.prefix)
        result = expected(found, TaskResult)
        response = result_response(result, self.prefix, self.head.headers.get(b"accept-encoding"))
        if len(response.body) > LONG_BODY_BYTES:
            self.connection.check_response(len(response.body))  # before it counts as read
        if result.status and not self._is_gone():
            self.link.mark_read(result.task.id)
        return response

    # It is of no model: the metrics of requests are those of models.

    def model(self) -> str:
        return ""

    def count(self, response: HttpResponse) -> None:
        """Counted nowhere, as on the ASGI path."""

    def count_gone(self) -> None:
        self.log_gone()
