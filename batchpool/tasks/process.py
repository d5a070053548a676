"""The task process: a local client of its pool that keeps tasks and runs them.

The supervisor starts it with a control channel, over which it gets `StartTasks`:

    python -m batchpool.tasks --control-fd N --parent PID [--name NAME] [--log-level LEVEL]
        [--log-format FORMAT]

It imports no model and runs no user's code, so that nothing a model does can keep it from its
store. Whatever kills it, the next one finds every task that an answer 202 has promised.

At SIGTERM it claims nothing any more, ends what runs, answers its askers until they have gone, and
ends; what is queued stays in the store for the next pool.

Exit status:   0  after SIGTERM
               1  the store cannot be used, or the supervisor has gone
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop

from batchpool.batches.database import FolderUnusable
from batchpool.batches.forward_clock import ForwardClock
from batchpool.batches.line_calls import PoolLineCalls
from batchpool.batches.service import BatchService
from batchpool.control.channel import Channel, Closed
from batchpool.control.edges import TO_TASK_PROCESS
from batchpool.control.task_messages import SetTasks, StartTasks, TasksFailed, TasksServing
from batchpool.log import setup
from batchpool.process import bootstrap
from batchpool.process.heap import return_free_memory, return_large_blocks
from batchpool.shm.heartbeat import Heartbeats, beat_interval_ns
from batchpool.shm.stats.tracebacks import Tracebacks
from batchpool.tasks.alerts import Alerts
from batchpool.tasks.answers import TaskAnswers
from batchpool.tasks.choice import open_store
from batchpool.tasks.committer import Committer
from batchpool.tasks.ends import Ends
from batchpool.tasks.engine import PoolEngine
from batchpool.tasks.judgement import judge
from batchpool.tasks.metrics import TaskMetrics
from batchpool.tasks.runner import Runner
from batchpool.tasks.server import TaskServer
from batchpool.tasks.settings import TaskSettings
from batchpool.tasks.store import StoreAway, StoreFull, TaskStore
from batchpool.tasks.task_ends import TaskEnds
from batchpool.tasks.upkeep import Upkeep

_LOG = logging.getLogger("batchpool.tasks")
_EXIT_OK, _EXIT_FAILED = 0, 1
_RETURN_MEMORY_S = 5.0


def main(argv: Sequence[str]) -> int:
    """Run the task process; returns its exit status."""
    args = bootstrap.arguments("tasks", argv)
    bootstrap.start(args.parent)
    return_large_blocks()
    bootstrap.log_to_stderr("tasks", args)
    channel = bootstrap.control_channel(args.control_fd)
    try:
        message, fds = channel.receive(TO_TASK_PROCESS)
    except Closed:
        return _EXIT_FAILED
    assert isinstance(message, StartTasks), "the first message starts the process"
    listener = socket.socket(fileno=fds[0])
    listener.setblocking(False)
    heartbeats = Heartbeats(fds[1], message.processes)
    tracebacks = Tracebacks(fds[2], writable=False)
    os.close(fds[1])
    os.close(fds[2])
    settings = TaskSettings.of(message.server)
    bootstrap.stand_back(settings.nice)
    batches = None
    try:
        store, clock_ms = open_store(Path(message.folder), settings)
        if message.batch_folder:
            batches = BatchService(Path(message.batch_folder), message.server, ForwardClock())
    except (StoreAway, FolderUnusable) as exc:
        channel.send(TasksFailed(str(exc)))
        _LOG.error("%s", exc)
        return _EXIT_FAILED
    bootstrap.settle()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        process = TaskProcess(
            channel, message, settings, store, clock_ms, heartbeats, listener, tracebacks, batches
        )
        return runner.run(process.run())


class TaskProcess:
    """The parts of the process on its event loop, from start to end."""

    def __init__(
        self,
        channel: Channel,
        start: StartTasks,
        settings: TaskSettings,
        store: TaskStore,
        clock_ms: Callable[[], int],
        heartbeats: Heartbeats,
        listener: socket.socket,
        tracebacks: Tracebacks,
        batches: BatchService | None = None,
    ) -> None:
        self._channel = channel
        self._start = start
        self._settings = settings
        self._store = store
        self._clock_ms = clock_ms
        self._heartbeats = heartbeats
        self._listener = listener
        self._tracebacks = tracebacks
        self._batches = batches
        self._stall_timeout_s: float = start.server["stall_timeout_s"]
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Serve until SIGTERM; returns the exit status."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        loop.add_reader(self._channel.fileno(), self._hear)
        self._beat()
        self._return_memory()
        metrics, clock_ms = TaskMetrics(), self._clock_ms
        ends = Ends(is_alone=not self._store.lease_s)
        committer = Committer(self._store, clock_ms, metrics.committed)
        engine = PoolEngine(self._start.socket)
        alerts = Alerts(self._settings.alert_command, loop.time)
        task_ends = TaskEnds(
            committer, self._settings.attempts, ends, metrics, alerts, clock_ms,
            self._tracebacks.find, is_shared=bool(self._store.lease_s),
        )  # fmt: skip
        runner = Runner(committer, engine, self._settings, task_ends, metrics, clock_ms)
        answers = TaskAnswers(
            committer, runner, self._settings, ends, metrics, clock_ms,
            self._settings.store or self._start.folder,
            self._batches,
            seed=zlib.crc32(f"{socket.gethostname()} {self._start.folder}".encode()),
        )  # fmt: skip
        upkeep = Upkeep(committer, runner, ends, metrics, alerts, self._store.lease_s)
        server = TaskServer(answers)
        await self._take_over(runner)
        await server.listen(self._listener)
        works = [asyncio.create_task(runner.run()), asyncio.create_task(upkeep.run())]
        if self._batches is not None:
            works.append(self._batches.start(PoolLineCalls(engine.driver), judge))
        for work in works:
            work.add_done_callback(self._ended)
        self._channel.send(TasksServing())
        await self._stop.wait()
        answers.stopping = True
        ends.tell_all()
        if self._batches is not None:
            await self._batches.stop()
        await runner.stop()
        await server.until_alone()
        for work in works[1:]:
            work.cancel()
        await asyncio.wait(works)
        await alerts.end()
        if self._batches is not None:
            await self._batches.close()
        await engine.close()
        await committer.close()
        return _EXIT_OK

    async def _take_over(self, runner: Runner) -> None:
        """Begin with what owners that have vanished had claimed. A server that is away keeps
        nothing else waiting: the upkeep asks again."""
        try:
            await runner.reclaim()
        except (StoreAway, StoreFull) as exc:
            if not self._store.lease_s:
                raise
            _LOG.error("the store of tasks cannot be used yet: %s", exc)

    def _ended(self, work: asyncio.Task[None]) -> None:
        """A part has ended that should not: by a fault of ours the next process goes on."""
        if not work.cancelled() and (exc := work.exception()) is not None:
            _LOG.critical("the task process cannot go on", exc_info=exc)
            os._exit(_EXIT_FAILED)

    def _beat(self) -> None:
        self._heartbeats.beat(self._start.heartbeat, time.monotonic_ns())
        interval_s = beat_interval_ns(self._stall_timeout_s) / 1e9
        asyncio.get_running_loop().call_later(interval_s, self._beat)

    def _return_memory(self) -> None:
        """Give back what tasks and files that have gone held."""
        return_free_memory()
        asyncio.get_running_loop().call_later(_RETURN_MEMORY_S, self._return_memory)

    def _hear(self) -> None:
        try:
            message, _ = self._channel.receive(TO_TASK_PROCESS)
        except BlockingIOError:
            return
        except Closed:
            _LOG.error("the supervisor has gone")
            os._exit(_EXIT_FAILED)
        if isinstance(message, SetTasks):
            self._stall_timeout_s = message.stall_timeout_s
            setup.set_level(message.log_level)
