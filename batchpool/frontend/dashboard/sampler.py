"""Gathers the inputs of the dashboard's snapshots in one front end.

The supervisor is asked on the loop. Counters, flight recorder and GPUs are read in the thread of
/metrics: together they take some milliseconds.
"""

from __future__ import annotations

import time
from typing import Any

from batchpool.client.session import Session
from batchpool.core.errors import PoolError
from batchpool.core.layout.states import PoolState
from batchpool.frontend.dashboard.rates import SlidingWindow
from batchpool.frontend.dashboard.snapshot import SnapshotInputs, compose
from batchpool.frontend.dashboard.status_client import StatusClient
from batchpool.frontend.http.background import BackgroundThread
from batchpool.frontend.service.gpu_metrics import Gpus
from batchpool.shm.stats.counters import Counters
from batchpool.shm.stats.flight_recorder import FlightRecorder

_PAGE = 0  # the flow of snapshots, besides the callers' of /metrics
_BATCHES = 12  # of the last ones


class Sampler:
    """Makes snapshots of the pool of an attached session. version: of the package."""

    def __init__(
        self,
        session: Session,
        counters: Counters,
        flight_recorder: FlightRecorder,
        gpus: Gpus,
        scrapes: BackgroundThread,
        version: str,
    ) -> None:
        self._session = session
        self._counters = counters
        self._flight_recorder = flight_recorder
        self._gpus = gpus
        self._scrapes = scrapes
        self._version = version
        self._status_client = StatusClient(session.server["socket"])
        self._window = SlidingWindow()
        self._status: dict[str, Any] | None = None  # the supervisor's last one
        self._status_s = 0.0

    def begin(self) -> None:
        """Forget earlier samples; the first viewer has come."""
        self._window.clear()
        self._status = None

    def rest(self) -> None:
        """Close the connection to the supervisor; the last viewer has gone."""
        self._status_client.close()

    async def take(self) -> dict[str, Any]:
        """The snapshot of now. Without the supervisor it has the last status and says so."""
        why, now_s = "", time.monotonic()
        try:
            self._status = await self._status_client.status()
            self._status_s = now_s
        except PoolError as exc:
            why = exc.message
            if self._status is not None:
                why += f"; what it said last is {now_s - self._status_s:.0f} s old"
        return await self._scrapes.run(_PAGE, self._snapshot, self._status, why)

    def _snapshot(self, status: dict[str, Any] | None, why: str) -> dict[str, Any]:
        counters, flight_recorder = self._counters, self._flight_recorder
        inputs = SnapshotInputs(
            span=self._window.add(time.monotonic(), counters.totals()),
            facts=tuple(self._session.models.values()),
            state=PoolState(self._session.state_page.state.get()).name.lower(),
            status=status,
            why=why,
            now_s=time.time(),
            now_ns=time.monotonic_ns(),
            batches=flight_recorder.last(_BATCHES),
            recent_errors=flight_recorder.recent_errors.last(),
            worker_names=counters.worker_slot_names(),
            model_names=counters.model_names(),
            gpus={gpu.index: gpu.values for gpu in self._gpus.look()},
            version=self._version,
        )
        return compose(inputs)
