"""Replies of the server as the values of a store.

Whoever may write to the server may have put anything there, and a release that is no longer known.
A field that is damaged is read as if it were empty: no record keeps those of others from being
read, claimed and dropped, and a task without an input fails by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from batchpool.control.task_messages import LetterForm, TaskForm
from batchpool.tasks.record import ClaimedTask, TaskState
from batchpool.tasks.task_rows import headers_of

# The fields of a task's hash that `form_of` takes, as FORM in lua/common.lua.
FORM = (
    "id", "state", "model", "attempts", "submitted", "started", "finished", "code", "error"
)  # fmt: skip
LETTER = (
    "letter", "id", "model", "code", "error", "attempts", "rows", "submitted", "died", "caller",
    "facts",
)  # fmt: skip

_LARGEST = 2**63 - 1
_FACTS = msgspec.msgpack.Decoder(dict[str, Any])


def text(value: bytes | None) -> str:
    """A field as text, "" for one that is not there; what is no UTF-8 in it is replaced."""
    return (value or b"").decode("utf-8", "replace")


def number(value: bytes | None) -> int:
    """A field as a number from 0 to 2**63 - 1; 0 for one that is not there, or is none."""
    try:
        return min(max(0, int(float(value or b"0"))), _LARGEST)
    except (ValueError, OverflowError):
        return 0


def state_of(value: bytes | None) -> TaskState:
    """A field as a state. What is none ended, in a way that nobody knows."""
    try:
        return TaskState(int(value or b"0"))
    except ValueError:
        return TaskState.FAILED


def headers_in(value: bytes | None) -> tuple[tuple[bytes, bytes], ...]:
    """A field as the headers of an answer."""
    try:
        return headers_of(value)
    except ValueError:
        return ()


def form_of(found: Sequence[Any]) -> TaskForm:
    """The task of the fields FORM."""
    return TaskForm(
        text(found[0]), state_of(found[1]).label, text(found[2]), number(found[3]),
        number(found[4]), number(found[5]), number(found[6]), text(found[7]), text(found[8]),
    )  # fmt: skip


def claimed_of(model: str, found: Sequence[Any], now_ms: int) -> ClaimedTask:
    """A task that is claimed now, of {id, claim, attempts, losses, rows, input, answer,
    submitted}."""
    return ClaimedTask(
        text(found[0]), model, number(found[1]), number(found[2]), number(found[3]),
        number(found[4]), found[5] or b"", found[6] or b"", number(found[7]), now_ms,
    )  # fmt: skip


def letter_of(found: Sequence[Any]) -> LetterForm:
    """A dead letter of the fields LETTER, and of its input and answer where they follow."""
    return LetterForm(
        number(found[0]), text(found[1]), text(found[2]), text(found[3]), text(found[4]),
        number(found[5]), number(found[6]), number(found[7]), number(found[8]), text(found[9]),
        _facts_in(found[10]), *(part or b"" for part in found[11:]),
    )  # fmt: skip


def _facts_in(value: bytes | None) -> dict[str, Any]:
    try:
        return _FACTS.decode(value or b"\x80")
    except ValueError:
        return {}
