"""The partitions of the store as what is asked of them: scripts and commands, many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from batchpool.tasks.redis_keys import counts_key, key, task_partition
from batchpool.tasks.redis_link import Command, Link
from batchpool.tasks.redis_scripts import script


class Cells:
    """number: of the partitions."""

    def __init__(self, link: Link, number: int) -> None:
        self.link = link
        self.number = number

    def by_partition(self, ids: Iterable[str]) -> dict[int, list[int]]:
        """{partition: positions of its ids}; a text that is no id is nowhere."""
        found: dict[int, list[int]] = {}
        for position, identifier in enumerate(ids):
            partition = task_partition(identifier, self.number)
            if partition is not None:
                found.setdefault(partition, []).append(position)
        return found

    def scripts(
        self,
        name: str,
        words: Mapping[int, Sequence[Any]],
        *,
        errors: str = "raise",
        again: bool = False,
    ) -> dict[int, Any]:
        """The reply of a script in each of these partitions. words: its arguments there. errors:
        as of `Link.run`. again: as of `Command`."""
        called = script(name)
        commands = [
            Command(counts_key(p), tuple(given), called, again) for p, given in words.items()
        ]
        return dict(zip(words, self.link.run(commands, errors=errors), strict=True))

    def each(self, name: str, *words: Any) -> list[Any]:
        """The reply of one script in every partition."""
        return list(self.scripts(name, dict.fromkeys(range(self.number), words)).values())

    def commands(self, verb: str, name: str, *words: Any) -> list[Any]:
        """The reply to one command about the key `name` of every partition."""
        keys = [key(p, name) for p in range(self.number)]
        return self.link.run([Command(k, (verb, k, *words)) for k in keys])

    def forget_strays(self, name: str, found: Sequence[Sequence[bytes]]) -> None:
        """Remove what is no task of its partition from sorted sets `name`. found: some members of
        that of each partition. Nobody else would, and they would be found again for ever."""
        commands = []
        for p, members in enumerate(found):
            strays = [member for member in members if not self._is_of(member, p)]
            if strays:
                commands.append(Command(key(p, name), ("ZREM", key(p, name), *strays)))
        self.link.run(commands)

    def _is_of(self, identifier: bytes, partition: int) -> bool:
        return task_partition(identifier.decode("utf-8", "replace"), self.number) == partition

    def of_tasks(
        self,
        name: str,
        ids: Sequence[str],
        first: Sequence[Any],
        more: Sequence[Sequence[Any]],
        *,
        again: bool = False,
    ) -> list[Any]:
        """The replies of a script that answers for each task; None for a text that is no id.

        first: its arguments before those of the tasks, which are `more`. again: as of `Command`.
        """
        places = self.by_partition(ids)
        words = {
            p: [*first, *(word for place in at for word in more[place])] for p, at in places.items()
        }
        replies: list[Any] = [None] * len(ids)
        for partition, found in self.scripts(name, words, again=again).items():
            for place, reply in zip(places[partition], found, strict=True):
                replies[place] = reply
        return replies
