"""Homes: the partitions that an owner reads first, by rendezvous hashing over the live owners.

They are a preference: whoever has room takes from any partition where his homes have nothing. So
two owners with different views of who lives disturb nobody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence


def homes_of(owner: str, owners: Collection[str], partitions: int) -> list[int]:
    """The partitions for which no other owner has a higher weight."""
    everyone = {owner, *owners}
    return [p for p in range(partitions) if max(everyone, key=lambda o: _weight(o, p)) == owner]


def _weight(owner: str, partition: int) -> tuple[bytes, str]:
    return hashlib.blake2b(f"{partition}:{owner}".encode(), digest_size=8).digest(), owner


def reading_order(homes: Sequence[int], partitions: int, turn: int) -> list[int]:
    """All partitions, the homes first; `turn` says which of each begins, so that none is last
    always."""
    others = [p for p in range(partitions) if p not in homes]
    return [
        group[(turn + i) % len(group)] for group in (list(homes), others) for i in range(len(group))
    ]


def shares(waiting: Sequence[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """The number of tasks to take from each partition: [(partition, tasks)], `most` in all.

    waiting: [(partition, tasks that wait there)] in reading order. Those that are equally near get
    equal parts; what one does not need goes to the next.
    """
    found: list[tuple[int, int]] = []
    left = most
    for number, (partition, tasks) in enumerate(waiting):
        part = -(-left // (len(waiting) - number))
        taken = min(tasks, part, left)
        if taken:
            found.append((partition, taken))
        left -= taken
    return found
