"""The registry of process roles: everything that differs between the kinds of children.

Its module is run as `python -m MODULE` with the flags that `batchpool/process/bootstrap.py` reads.
A new kind of process is one more `Role` here, its package, the messages of its edges in
`batchpool/control/edges.py`, an owner that starts and replaces it, as those in
`batchpool/supervisor/fleet`, and a case in `batchpool/supervisor/child_events.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from batchpool.control.edges import (
    FROM_BATCHER,
    FROM_DISCOVERY,
    FROM_FRONTEND,
    FROM_TASK_PROCESS,
    FROM_WORKER,
    Edge,
    FromBatcher,
    FromDiscovery,
    FromFrontend,
    FromTaskProcess,
    FromWorker,
    ToBatcher,
    ToClient,
    ToFrontend,
    ToTaskProcess,
    ToWorker,
)

FromChild: TypeAlias = FromBatcher | FromWorker | FromFrontend | FromDiscovery | FromTaskProcess
"""The messages from any child."""

ToChild: TypeAlias = ToBatcher | ToWorker | ToFrontend | ToClient | ToTaskProcess
"""The messages to any child; a front end gets replies as a client does."""


class RestartPolicy(Enum):
    """ALWAYS: at once after useful work, else after a time that doubles. WHILE_SERVING: as ALWAYS,
    but not while the pool stops. NEVER: the process ends when its task is done."""

    ALWAYS = "always"
    WHILE_SERVING = "while serving"
    NEVER = "never"


@dataclass(frozen=True)
class Role:
    """One kind of child process.

    module: run with `python -m`. edge: the messages that it may send. restart: after its end.
    is_client: it asks for lanes over its control channel, as local clients do over theirs.
    sigterm_at_start: SIGTERM ends it even before it has set its signal actions; else the
    signal stays blocked until then. blas_threads: it multiplies matrices, so that OpenBLAS may
    start a thread for each core.
    """

    name: str
    module: str
    edge: Edge[FromChild]
    restart: RestartPolicy
    is_client: bool = False
    sigterm_at_start: bool = False
    blas_threads: bool = False

    def is_followed(self, *, stopping: bool) -> bool:
        """True if another process takes the place of one that has ended. stopping: of the pool."""
        if self.restart is RestartPolicy.WHILE_SERVING:
            return not stopping
        return self.restart is RestartPolicy.ALWAYS


BATCHER = Role(
    "batcher",
    "batchpool.batcher",
    FROM_BATCHER,
    RestartPolicy.ALWAYS,
)
WORKER = Role("worker", "batchpool.worker", FROM_WORKER, RestartPolicy.ALWAYS, blas_threads=True)
FRONTEND = Role(
    "frontend",
    "batchpool.frontend",
    FROM_FRONTEND,
    RestartPolicy.WHILE_SERVING,
    is_client=True,
    sigterm_at_start=True,
)
DISCOVERY = Role("discovery", "batchpool.cli.discovery", FROM_DISCOVERY, RestartPolicy.NEVER)
TASKS = Role(
    "tasks",
    "batchpool.tasks",
    FROM_TASK_PROCESS,
    RestartPolicy.WHILE_SERVING,
    sigterm_at_start=True,
)

ROLES = (BATCHER, WORKER, FRONTEND, DISCOVERY, TASKS)
