"""The upkeep of the store: deadlines, results whose time is over, lost claims, alerts."""

from __future__ import annotations

import asyncio
import logging

from batchpool.tasks.alerts import Alerts
from batchpool.tasks.committer import Committer
from batchpool.tasks.ends import Ends
from batchpool.tasks.metrics import TaskMetrics
from batchpool.tasks.record import Dropped
from batchpool.tasks.runner import Runner
from batchpool.tasks.store import StoreAway, StoreFull

_LOG = logging.getLogger("batchpool.tasks")
_EVERY_S = 1.0
_RECLAIMS_A_LEASE = 2


class Upkeep:
    """Sweeps the store once a second. lease_s: as of the store."""

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

    async def run(self) -> None:
        """Sweep until cancelled."""
        since_reclaim_s = 0.0
        while True:
            try:
                await self.sweep()
                if self._lease_s:
                    await self.hear_others()
                since_reclaim_s += _EVERY_S
                if self._lease_s and since_reclaim_s >= self._lease_s / _RECLAIMS_A_LEASE:
                    since_reclaim_s = 0.0
                    await self._runner.reclaim()
            except (StoreFull, StoreAway) as exc:
                _LOG.error("the store of tasks cannot be swept: %s", exc)
            self._alerts.look()
            await asyncio.sleep(_EVERY_S)

    async def hear_others(self) -> None:
        """Learn what other pools have done with tasks of a store that they share: which have ended
        that somebody waits for here, and which models have some to run."""
        ids = self._ends.ids()
        if ids:
            kept = await self._committer.run(lambda store, now_ms: store.look(ids, now_ms))
            self._ends.tell(
                identifier
                for identifier, task in zip(ids, kept, strict=True)
                if task is None or task.form.finished_ms
            )
        for model in await self._committer.run(lambda store, now_ms: store.models()):
            self._runner.submitted(model)

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
