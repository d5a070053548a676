"""The upkeep of the store: deadlines, results whose time is over, lost claims, alerts."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from itertools import chain

from batchpool.tasks.alerts import Alerts
from batchpool.tasks.committer import Committer
from batchpool.tasks.ends import Ends
from batchpool.tasks.metrics import TaskMetrics
from batchpool.tasks.record import Dropped
from batchpool.tasks.runner import Runner
from batchpool.tasks.store import StoreAway, StoreFull, StoreGone

_LOG = logging.getLogger("batchpool.tasks")
_EVERY_S = 1.0
_LOOKS = 10  # for ends in other pools between two sweeps
_LOOKED_AT_ONCE = 256  # so that a store pays a bounded price for any number of waits


class Upkeep:
    """Sweeps the store once a second, and hears of ends elsewhere more often. lease_s: as of the
    store."""

    def __init__(
        self,
        committer: Committer,
        runner: Runner,
        ends: Ends,
        metrics: TaskMetrics,
        alerts: Alerts,
        lease_s: float,
    ) -> None:
        self._committer = committer
        self._runner = runner
        self._ends = ends
        self._metrics = metrics
        self._alerts = alerts
        self._lease_s = lease_s
        self._looked_at = 0

    async def run(self) -> None:
        """Sweep until cancelled. Raises StoreGone where only another process can go on."""
        while True:
            try:
                await self.sweep()
                if self._lease_s:
                    await self.hear_others()
                    await self._runner.reclaim()
            except StoreGone:
                raise
            except (StoreFull, StoreAway) as exc:
                _LOG.error("the store of tasks cannot be swept: %s", exc)
            self._alerts.look()
            await self._pause()

    async def _pause(self) -> None:
        """Wait for the next sweep, and hear meanwhile of what ends in other pools."""
        if not self._lease_s:
            await asyncio.sleep(_EVERY_S)
            return
        for _ in range(_LOOKS):
            await asyncio.sleep(_EVERY_S / _LOOKS)
            # A store that cannot be asked is told of by the next sweep.
            with suppress(StoreFull, StoreAway):
                await self.hear_ends()

    async def hear_others(self) -> None:
        """Learn what other pools have done with tasks of a store that they share: which have ended
        that somebody waits for here, and which models have some to run."""
        await self.hear_ends(with_running=True)
        for model in await self._committer.run(lambda store, now_ms: store.models()):
            self._runner.submitted(model)

    async def hear_ends(self, *, with_running: bool = False) -> None:
        """Tell those who wait here of ends in other pools; many of them in turns. with_running: of
        tasks that run here, too, which only a caller who takes one back there can end."""
        running = [] if with_running else self._runner.running
        here = set(chain.from_iterable(running))
        ids = [identifier for identifier in self._ends.ids() if identifier not in here]
        if not ids:
            return
        first = self._looked_at % len(ids)
        ids = [*ids[first:], *ids[:first]][:_LOOKED_AT_ONCE]
        self._looked_at = first + len(ids)
        kept = await self._committer.run(lambda store, now_ms: store.look(ids, now_ms))
        self._ends.tell(
            identifier
            for identifier, task in zip(ids, kept, strict=True)
            if task is None or task.form.finished_ms
        )

    async def sweep(self) -> None:
        """End what is too old and drop what nobody collects, all of it."""
        more = True
        while more:
            found: Dropped = await self._committer.run(lambda store, now_ms: store.sweep(now_ms))
            self._ends.tell(found.ended)
            for identifier in found.ended:
                self._runner.cancelled(identifier)
            for model, code in found.letters:
                self._metrics.letter(model, code)
                self._alerts.letter(model, code)
            more = found.more
