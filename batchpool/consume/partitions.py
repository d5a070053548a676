"""The partitions that a consumer has now, with the progress of each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from batchpool.consume.progress import PartitionProgress

_LOG = logging.getLogger("batchpool.consume")


class Partitions:
    """PartitionProgress by partition. A partition that goes to another consumer takes its progress
    with it: records of it that end later are counted for nobody."""

    def __init__(self) -> None:
        self._progress: dict[Any, PartitionProgress] = {}
        self._changed = asyncio.Event()

    def begin(self, partition: Any, offsets: Iterable[int]) -> PartitionProgress:
        """Records of a partition were fetched; their progress, to be told of their ends.

        Offsets that go back, as of a topic that was deleted and made anew, have a progress of their
        own: what is under way of the old ones is counted for nobody."""
        offsets = list(offsets)
        progress = self._progress.setdefault(partition, PartitionProgress())
        if offsets and not progress.goes_on_at(offsets[0]):
            _LOG.warning("offsets of %s went back to %d: it was made anew", partition, offsets[0])
            progress = self._progress[partition] = PartitionProgress()
        for offset in offsets:
            progress.begin(offset)
        return progress

    def end(self, progress: PartitionProgress, offset: int) -> None:
        """A record has ended."""
        progress.end(offset)
        self._changed.set()

    @property
    def under_way(self) -> int:
        """Records of all partitions that have not ended."""
        return sum(progress.under_way for progress in self._progress.values())

    def to_commit(self, partitions: Iterable[Any] | None = None) -> dict[Any, int]:
        """{partition: offset} that have moved. partitions: of these only."""
        chosen = list(self._progress if partitions is None else partitions)
        found = {
            partition: self._progress[partition].to_commit()
            for partition in chosen
            if partition in self._progress
        }
        return {partition: offset for partition, offset in found.items() if offset is not None}

    def committed(self, offsets: dict[Any, int]) -> None:
        """The broker has taken these."""
        for partition, offset in offsets.items():
            if partition in self._progress:
                self._progress[partition].committed(offset)

    async def wait_until_ended(self, partitions: Iterable[Any], most_s: float) -> bool:
        """Wait until no record of these is under way; False where that takes too long."""
        chosen = [self._progress[each] for each in partitions if each in self._progress]
        try:
            async with asyncio.timeout(most_s):
                while any(progress.under_way for progress in chosen):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def wait_for_end(self, most_s: float) -> None:
        """Wait until some record has ended, or for so long."""
        self._changed.clear()
        try:
            async with asyncio.timeout(most_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    def forget(self, partitions: Iterable[Any]) -> None:
        """These belong to another consumer."""
        for partition in partitions:
            self._progress.pop(partition, None)
