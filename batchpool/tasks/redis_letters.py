"""Dead letters in the partitions. The number of a letter tells its partition, and its age."""

from __future__ import annotations

import os
from collections.abc import Sequence

from batchpool.control.task_messages import LetterForm
from batchpool.tasks.record import TOKEN_BYTES, task_id
from batchpool.tasks.redis_cells import Cells
from batchpool.tasks.redis_forms import LETTER, letter_of, number
from batchpool.tasks.redis_keys import key
from batchpool.tasks.redis_link import Command

_READ_AT_ONCE = 256
_WHOLE_AT_ONCE = 16  # with their inputs


class RedisLetters:
    """The dead letters of all partitions."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells

    def find(
        self, model: str, code: str, before: int, most: int, ids: Sequence[str], *, whole: bool
    ) -> list[LetterForm]:
        """Dead letters, the newest first; see `ListLetters`."""
        top = f"({before}" if before else "+inf"
        of_partitions = self._cells.commands("ZREVRANGEBYSCORE", "dead", top, "-inf")
        numbers = sorted((number(n) for kept in of_partitions for n in kept), reverse=True)
        fields = (*LETTER, "input", "answer") if whole else LETTER
        at_once = _WHOLE_AT_ONCE if whole else _READ_AT_ONCE
        found: list[LetterForm] = []
        while numbers and len(found) < most:
            now, numbers = numbers[:at_once], numbers[at_once:]
            places = [self._key(letter) for letter in now]
            replies = self._cells.link.run(
                [Command(place, ("HMGET", place, *fields)) for place in places]
            )
            for reply in replies:
                if reply[0] is None:  # it has gone meanwhile
                    continue
                form = letter_of(reply)
                right = model in ("", form.model) and code in ("", form.code)
                if right and (not ids or form.id in ids):
                    found.append(form)
        return found[:most]

    def _key(self, letter: int) -> str:
        return key(letter % self._cells.number, f"l:{letter}")

    def replay(self, letters: Sequence[int], now_ms: int, deadline_ms: int) -> list[str | None]:
        """Make queued tasks of letters, in their partitions; the ids of the new tasks."""
        return [self._replay(letter, now_ms, deadline_ms) for letter in letters]

    def _replay(self, letter: int, now_ms: int, deadline_ms: int) -> str | None:
        partition = letter % self._cells.number
        identifier = task_id(now_ms, os.urandom(TOKEN_BYTES), partition)
        words = {partition: (now_ms, letter, identifier, deadline_ms)}
        return identifier if self._cells.scripts("replay", words)[partition] else None

    def drop(self, letters: Sequence[int]) -> list[bool]:
        """Drop letters; False for one that is not there."""
        return [self._drop(letter) for letter in letters]

    def _drop(self, letter: int) -> bool:
        partition = letter % self._cells.number
        return bool(self._cells.scripts("drop_letter", {partition: (letter,)})[partition])
