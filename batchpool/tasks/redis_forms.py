"""Replies of the server as the values of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from batchpool.control.task_messages import LetterForm, TaskForm
from batchpool.tasks.record import ClaimedTask, TaskState

# The fields of a task's hash that `form_of` takes, as FORM in lua/common.lua.
FORM = (
    "id", "state", "model", "attempts", "submitted", "started", "finished", "code", "error"
)  # fmt: skip
LETTER = (
    "letter", "id", "model", "code", "error", "attempts", "rows", "submitted", "died", "caller",
    "facts",
)  # fmt: skip


def text(value: bytes | None) -> str:
    """A field as text, "" for one that is not there."""
    return (value or b"").decode("utf-8", "surrogateescape")


def number(value: bytes | None) -> int:
    """A field as a number, 0 for one that is not there."""
    return int(float(value or b"0"))


def form_of(found: Sequence[Any]) -> TaskForm:
    """The task of the fields FORM."""
    return TaskForm(
        text(found[0]), TaskState(number(found[1])).label, text(found[2]), number(found[3]),
        number(found[4]), number(found[5]), number(found[6]), text(found[7]), text(found[8]),
    )  # fmt: skip


def claimed_of(model: str, found: Sequence[Any], now_ms: int) -> ClaimedTask:
    """A task that is claimed now, of {id, claim, attempts, losses, rows, input, answer,
    submitted}."""
    return ClaimedTask(
        text(found[0]), model, int(found[1]), number(found[2]), number(found[3]), number(found[4]),
        found[5] or b"", found[6] or b"", number(found[7]), now_ms,
    )  # fmt: skip


def letter_of(found: Sequence[Any]) -> LetterForm:
    """A dead letter of the fields LETTER, and of its input and answer where they follow."""
    return LetterForm(
        number(found[0]), text(found[1]), text(found[2]), text(found[3]), text(found[4]),
        number(found[5]), number(found[6]), number(found[7]), number(found[8]), text(found[9]),
        msgspec.msgpack.decode(found[10] or b"\x80"), *(part or b"" for part in found[11:]),
    )  # fmt: skip
