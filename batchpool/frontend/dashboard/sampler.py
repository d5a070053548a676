"""Lookout: where one front end's snapshots come from, a look at everything once a second.

The supervisor is asked on the loop. Counters, flight recorder and GPUs are read in the thread for
long work, as /metrics does: together they take some milliseconds.
"""

from __future__ import annotations

import time
from typing import Any

from batchpool.client.session import Session
from batchpool.core.errors import PoolError
from batchpool.core.layout.states import PoolState
from batchpool.frontend.asgi.infer import BackgroundThread
from batchpool.frontend.dashboard.rates import SlidingWindow
from batchpool.frontend.dashboard.snapshot import SnapshotInputs, compose
from batchpool.frontend.dashboard.status_client import StatusClient
from batchpool.frontend.service.gpu_metrics import Gpus
from batchpool.shm.stats.counters import Counters
from batchpool.shm.stats.flight_recorder import FlightRecorder

_BATCHES = 12  # of the last ones


class Sampler:
    """The pool as an attached session sees it. version: of the package."""

    def __init__(
        self,
        session: Session,
        counters: Counters,
        flight_recorder: FlightRecorder,
        gpus: Gpus,
        aside: BackgroundThread,
        version: str,
    ) -> None:
        self._session = session
        self._counters = counters
        self._flight_recorder = flight_recorder
        self._gpus = gpus
        self._aside = aside
        self._version = version
        self._inquiry = StatusClient(session.server["socket"])
        self._window = SlidingWindow()
        self._account: dict[str, Any] | None = None  # what the supervisor said last
        self._account_s = 0.0

    def begin(self) -> None:
        self._window.clear()
        self._account = None

    def rest(self) -> None:
        self._inquiry.close()

    async def take(self) -> dict[str, Any]:
        why, now_s = "", time.monotonic()
        try:
            self._account = await self._inquiry.status()
            self._account_s = now_s
        except PoolError as exc:
            why = exc.message
            if self._account is not None:
                why += f"; what it said last is {now_s - self._account_s:.0f} s old"
        return await self._aside.begin(self._look, self._account, why)

    def _look(self, status: dict[str, Any] | None, why: str) -> dict[str, Any]:
        counters, flight_recorder = self._counters, self._flight_recorder
        sight = SnapshotInputs(
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
        return compose(sight)
