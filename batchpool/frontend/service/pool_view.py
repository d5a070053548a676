"""The state of one front end: its endpoints, its limits and its metadata."""

from __future__ import annotations

import logging
from collections.abc import Callable

from batchpool.client.loop import ClientLoop
from batchpool.core.config.paths import task_socket_path
from batchpool.core.errors import ConfigError
from batchpool.frontend.http.access_log import AccessLog
from batchpool.frontend.http.background import BackgroundThread
from batchpool.frontend.http.gate import Gate
from batchpool.frontend.http.memory_budget import MemoryBudget
from batchpool.frontend.parser.process import ParserProcess
from batchpool.frontend.service.body_limits import max_body_bytes, max_held_bytes
from batchpool.frontend.service.endpoint_table import EndpointTable
from batchpool.frontend.service.gpu_metrics import Gpus
from batchpool.frontend.service.metadata import MetadataResponses, package_version
from batchpool.frontend.service.not_offered import NotOffered
from batchpool.frontend.service.openai_models import OpenAIModels
from batchpool.frontend.service.prometheus import Scrape
from batchpool.frontend.service.readiness import Readiness
from batchpool.frontend.service.reloads import Reloads
from batchpool.frontend.service.repository import ModelRepository
from batchpool.frontend.service.statistics import StatisticsResponses
from batchpool.frontend.service.task_link import TaskLink
from batchpool.frontend.service.text_models import TextModels
from batchpool.shm.stats.counters import Counters

_LOG = logging.getLogger("batchpool.frontend")


def _ignore_stop() -> None:
    """For a front end without parts that keep callers connected."""


class PoolView:
    """The state that all connections of one front end share.

    session: attached to the pool, and driven by client_loop. counters: the pool's, in which this
    front end's rows are those of `number`. background: runs long work of infer requests outside of
    the event loop. scrapes: makes the responses of /metrics, which must not wait for such work.
    parser: parses long texts outside
    of this process. tasks: the task process, None where the pool keeps no tasks. batches: the
    same, None where it keeps no files and runs no batches. gate: of the
    session's settings; None makes one. on_stop: called once when this front end stops, for parts
    that keep callers connected.
    """

    def __init__(
        self,
        client_loop: ClientLoop,
        counters: Counters,
        gpus: Gpus,
        background: BackgroundThread,
        scrapes: BackgroundThread,
        parser: ParserProcess,
        *,
        number: int = 0,
        gate: Gate | None = None,
        on_stop: Callable[[], None] = _ignore_stop,
    ) -> None:
        session = client_loop.session
        self.session = session
        self.background = background
        self.scrapes = scrapes
        self.max_body_bytes = max_body_bytes(session.server)
        self.memory = MemoryBudget(max_held_bytes(session.server), self.max_body_bytes)
        self.access = AccessLog(session.server)
        self.gate = Gate(session.server) if gate is None else gate
        self.scrape = Scrape(counters, gpus, package_version())
        self.endpoints = EndpointTable(client_loop, counters, parser, number)
        self.readiness = Readiness(client_loop, self.endpoints)
        self.metadata = MetadataResponses(self.endpoints, self.readiness)
        self.statistics = StatisticsResponses(counters, self.endpoints, scrapes)
        self.repository = ModelRepository(
            session, self.endpoints, self.readiness, Reloads(client_loop)
        )
        self.not_offered = NotOffered(self.endpoints)
        self.openai = OpenAIModels(self.endpoints)
        self.texts = TextModels(self.endpoints, background)
        self.tasks: TaskLink | None = None
        if session.server.get("tasks"):
            self.tasks = TaskLink(task_socket_path(session.server["socket"]))
        self.batches = self.tasks if session.server.get("batches") else None
        self.client_loop = client_loop
        self._on_stop = on_stop

    @property
    def stopping(self) -> bool:
        """True once `stop` was called."""
        return self.readiness.stopping

    def stop(self) -> None:
        """Be not ready from now on, and end what keeps callers connected."""
        self.readiness.stopping = True
        self._on_stop()

    def learn(self) -> None:
        """Take the session's facts as a reload has changed them."""
        server = self.client_loop.session.server
        self.max_body_bytes = max_body_bytes(server)
        self.memory.learn(max_held_bytes(server), self.max_body_bytes)
        self.access.learn(server)
        try:
            self.gate.learn(server)
        except ConfigError as exc:  # the supervisor has read it just now, and found no fault
            _LOG.error("the proxies, hosts, origins and keys stay as they were: %s", exc)
        self.endpoints.learn()
        self.texts.learn()
        self.metadata.learn()
