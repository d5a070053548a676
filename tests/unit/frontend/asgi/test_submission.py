"""The submission of tasks: what could never run is refused before anybody keeps it."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest

from batchpool.control.messages import Message
from batchpool.control.task_messages import SubmitTask, TaskForm, TaskSubmitted
from batchpool.core.errors import TooLarge
from batchpool.frontend.asgi.submission import Submission
from batchpool.frontend.http.background import BackgroundThread
from batchpool.frontend.http.caller import Caller
from batchpool.frontend.http.memory_budget import MemoryBudget
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.request_head import RequestHead
from batchpool.wire.left_out import LeftOut
from batchpool.wire.preferences import AsyncPreference
from tests.unit.frontend.calls import affine
from tests.unit.frontend.frontend_double import edge
from tests.unit.frontend.loops import on_loop
from tests.unit.frontend.models import Affine


class LinkDouble:
    """Takes every task. asked: the messages so far."""

    def __init__(self) -> None:
        self.asked: list[Message] = []

    async def ask(self, message: Message, *_: Any, left_out: LeftOut) -> TaskSubmitted:
        self.asked.append(message)
        return TaskSubmitted(TaskForm("t_1", "queued", "affine"))


@on_loop
async def test_more_rows_than_the_lane_takes_are_no_task() -> None:
    async with edge(Affine, slots=8) as it:
        endpoint = it.view.endpoints.find("affine")
        link: Any = LinkDouble()
        most = endpoint.lane_client.allocator.bound
        memory = MemoryBudget(1 << 20)

        async def status(rows: int) -> int:
            body = json.dumps(affine(*range(rows))).encode()
            headers = {b"content-length": b"%d" % len(body)}

            async def receive() -> dict[str, Any]:
                return {"type": "http.request", "body": body}

            head = RequestHead.of(headers, Caller("peer"))
            submission = Submission(link, endpoint, head, AsyncPreference(0), (), "")
            with closing(BackgroundThread()) as background:
                response = await submission.run(RequestBody(receive, headers), background, memory)
            assert response is not None
            return response.status

        assert await status(most) == 202
        with pytest.raises(TooLarge, match=f"{most + 1} rows at once") as caught:
            await status(most + 1)
        assert caught.value.status == 413
        (submitted,) = link.asked
        assert isinstance(submitted, SubmitTask)
        assert submitted.rows == most
        assert memory.held_for(RequestHead.of({}, Caller("peer")).flow) == 0
