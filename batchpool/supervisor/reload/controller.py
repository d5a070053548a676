"""The reloads of a pool, one at a time, from the request to the reply.

requested    by SIGHUP, or by a caller that waits for the end. While a reload is under way, or while
             the pool still loads, further requests are kept; together they are one reload
discovering  a child process reads the configuration and probes the models; what the configuration
             alone tells to be impossible ends it before it probes
refused      the configuration is wrong, or a change needs a restart: nothing was changed
executing    by `worker_swap_executor.py` and `lane_migration_executor.py`: it ends done or undone
cancelled    by an operator before every new worker serves: nothing was changed, or it is undone
aborted      because the pool itself stops

A worker that was killed and does not end, as one whose driver hangs, is given up: the reply names
it, it keeps its entry and lanes as long as it exists, and no later reload waits for it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

from batchpool.control.edges import FromDiscovery
from batchpool.control.process_messages import ConfigurationRead, Discovered, DiscoveryFailed
from batchpool.core.config.paths import socket_path
from batchpool.core.config.schema import Config
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import ConfigError, InvalidRequest, StartError
from batchpool.supervisor.children.child import (
    LAST_WAIT_NS,
    Child,
    ProcessSlot,
    log_flags,
    start_child,
)
from batchpool.supervisor.children.roles import DISCOVERY
from batchpool.supervisor.fleet.processes import ProcessFleet
from batchpool.supervisor.host.service_status import ServiceStatus
from batchpool.supervisor.plan.diff import check_server, differences, revised
from batchpool.supervisor.plan.discover import check_made_by, from_message, made_by
from batchpool.supervisor.plan.frontend_count import frontends_of
from batchpool.supervisor.plan.plan import Plan
from batchpool.supervisor.reload.lane_migration_executor import LaneMigrationExecutor
from batchpool.supervisor.reload.worker_swap import SwapPhase
from batchpool.supervisor.reload.worker_swap_executor import WorkerSwapExecutor
from batchpool.supervisor.resources.client_connection import ClientConnection
from batchpool.supervisor.resources.resources import PoolResources

_LOG = logging.getLogger("batchpool.supervisor")

OnDone = Callable[[bool, str], None]
"""Called at the end of a reload: True if it was done; what was done, or why it was not."""


class ReloadController:
    """Runs all reloads of one pool. No method waits.

    words: the command line of `batchpool`, as "serve pool.toml". watch: adds a child to the
    supervisor's event loop. clients: returns all attached clients. discovery: the child that reads
    the configuration, while there is one. last: the outcome of the last reload in words.
    """

    def __init__(
        self,
        resources: PoolResources,
        process_fleet: ProcessFleet,
        service_status: ServiceStatus,
        words: Sequence[str],
        watch: Callable[[Child], None],
        clients: Callable[[], Sequence[ClientConnection]],
        clock_ns: Callable[[], int],
    ) -> None:
        self._resources = resources
        self._process_fleet = process_fleet
        self._service_status = service_status
        self._words = words
        self._watch = watch
        self._clients = clients
        self._clock_ns = clock_ns
        self._version = made_by()
        self._requested = False
        self._next: list[OnDone] = []  # callbacks of the reload that is kept
        self._callbacks: list[OnDone] = []  # callbacks of the one under way
        self._began_ns = 0
        self.discovery: Child | None = None
        self._found: Discovered | DiscoveryFailed | None = None
        self._swap_executor: WorkerSwapExecutor | None = None
        self._lane_migration: LaneMigrationExecutor | None = None
        self._unfinished: list[LaneMigrationExecutor] = []  # of earlier reloads
        self._reported = True  # the outcome of the one under way
        self._failure = ""  # the reason why it rolls back
        self._given_up: list[str] = []  # workers that do not end
        self._summary = ""
        self.last = ""

    @property
    def busy(self) -> bool:
        """True while a reload is under way."""
        return not (
            self.discovery is None and self._swap_executor is None and self._lane_migration is None
        )

    def state(self) -> str:
        """The state of the reload under way in words; "" if there is none."""
        if self.discovery is not None:
            return "reading the configuration"
        if self._lane_migration is not None and self._reported:
            left = self._lane_migration.leaving()
            return f"waiting for {left}" if left else "ending what was replaced"
        if self._swap_executor is None:
            return ""
        serving, of = self._swap_executor.swap.progress()
        if self._swap_executor.swap.failure:
            return f"going back, {serving} of {of} new workers still serve"
        return f"{serving} of {of} new workers serve"

    # -- requests -----------------------------------------------------------------------

    def request(self, on_done: OnDone | None = None) -> None:
        """Reload as soon as no other reload is under way. on_done: called at its end."""
        self._requested = True
        if on_done is not None:
            self._next.append(on_done)

    def cancel(self) -> str:
        """Cancel the reload under way and return the consequence in words.

        Its end is reported as ever. Raises InvalidRequest if there is none, or it is too late.
        """
        if self.discovery is not None:
            self.discovery.cause = "was cancelled"
            self.discovery.kill()
            return "cancelled: nothing was changed"
        if self._swap_executor is None or self._reported:
            raise InvalidRequest("no reload is under way")
        if self._swap_executor.swap.phase is SwapPhase.COMMITTED:
            raise InvalidRequest("it is too late: the new workers serve, and the old ones end")
        self._swap_executor.swap.fail("it was cancelled")
        return "cancelled: the old workers serve"

    def tick(self) -> None:
        """Do what is due; called in each iteration of the supervisor's loop."""
        if self.discovery is not None and self.discovery.is_stuck(self._clock_ns()):
            self.discovery.cause += " and does not end although it was killed"
            self.discovery_ended(self.discovery)
        for lane_migration in self._unfinished:
            lane_migration.step()
        self._unfinished = [migration for migration in self._unfinished if not migration.over]
        if self._lane_migration is not None:
            self._step(self._lane_migration)
        if (
            self._requested
            and not self.busy
            and self._process_fleet.was_ready
            and not self._process_fleet.stopping
        ):
            self._begin()

    def _begin(self) -> None:
        self._requested = False
        self._callbacks, self._next = self._next, []
        self._began_ns = self._clock_ns()
        self._found = None
        _LOG.info("reloading: reading the configuration")
        try:
            self.discovery = start_child(
                DISCOVERY,
                ProcessSlot("discovery"),
                started_ns=self._began_ns,
                flags=[*log_flags(self._resources.plan.server), "--", *self._words],
            )
        except StartError as exc:
            self._report(False, f"nothing was changed: {exc}")
        else:
            self._watch(self.discovery)
            self._service_status.reloading(self._began_ns)

    # -- discovery ----------------------------------------------------------------------

    def discovered(self, message: FromDiscovery) -> None:
        """Keep the discovery's message until its process has ended, which the refusal of a
        configuration brings about."""
        if not isinstance(message, ConfigurationRead):
            self._found = message
            return
        try:
            self._check_server(message)
        except (ConfigError, StartError) as exc:
            self._found = DiscoveryFailed(str(exc))
            if self.discovery is not None:
                self.discovery.kill()

    def _check_server(self, message: ConfigurationRead) -> None:
        check_made_by(message, self._version)
        config = self._activated(Config(ServerConfig(**message.server)))
        frontends = frontends_of(config.server, message.cores)
        check_server(self._resources.plan, config.server, frontends, config.server.socket)

    def _activated(self, config: Config) -> Config:
        """A configuration, changed by the sockets that systemd passed."""
        path = socket_path(config.server, os.environ, os.getuid())
        return self._resources.activated.configured(config, path)

    def discovery_ended(self, child: Child) -> None:
        """The discovery's process has ended, with or without a message."""
        if child is not self.discovery:
            return  # it is not waited for any more
        self.discovery = None
        if self._process_fleet.stopping:
            return
        try:
            if self._found is None or child.cause:  # a cause: cancelled after its message
                raise StartError(f"the process that reads the configuration {child.reason()}")
            new = self._next_plan(self._found)
        except (ConfigError, StartError) as exc:
            self._report(False, f"nothing was changed: {exc}")
            return
        self._execute(new)

    def _next_plan(self, message: Discovered | DiscoveryFailed) -> Plan:
        if not isinstance(message, Discovered):
            raise ConfigError(message.error)
        found = from_message(message, self._version)
        config = self._activated(found.config)
        plan, resources = found.plan(config, config.server.socket), self._resources
        names = resources.counters.model_names()
        return revised(
            resources.plan, plan, names, resources.max_lanes, self._process_fleet.entries
        )

    # -- execution ----------------------------------------------------------------------

    def _execute(self, new: Plan) -> None:
        old, process_fleet = self._resources.plan, self._process_fleet
        self._summary = _summary(old, new)
        process_fleet.plan_begins(old, new)
        lane_migration = self._lane_migration = LaneMigrationExecutor(
            old, new, self._resources, process_fleet, self._clients, self._clock_ns
        )
        self._reported, self._failure = False, ""
        self._swap_executor = WorkerSwapExecutor(
            old, new, process_fleet.workers, lane_migration,
            lambda: self._commit(old, new, lane_migration),
        )  # fmt: skip
        self._step(lane_migration)
        self._service_status.refresh()

    def _commit(self, old: Plan, new: Plan, lane_migration: LaneMigrationExecutor) -> None:
        self._process_fleet.plan_counts(old, new)
        lane_migration.commit()
        self._service_status.set_server(new.server)

    def _step(self, lane_migration: LaneMigrationExecutor) -> None:
        lane_migration.step()
        swap_executor = self._swap_executor
        if swap_executor is not None:
            self._step_swap(swap_executor, lane_migration)
            if not swap_executor.over:
                return
            self._swap_executor = None
            self._process_fleet.plan_settled()
            lane_migration.settle()
        if lane_migration.over or lane_migration.waits_for_stuck:
            self._lane_migration = None
            self._unfinished += [] if lane_migration.over else [lane_migration]
            if not self._reported:
                self._report_end()

    def _step_swap(
        self, swap_executor: WorkerSwapExecutor, lane_migration: LaneMigrationExecutor
    ) -> None:
        swap_executor.step()
        if lane_migration.failure:
            swap_executor.swap.fail(lane_migration.failure)
            swap_executor.step()
        self._failure = swap_executor.swap.failure
        self._given_up = swap_executor.given_up
        if self._failure:
            lane_migration.undo()
        elif swap_executor.swap.rolled_out and not self._reported:
            self._report_end()

    # -- outcome ------------------------------------------------------------------------

    def _report_end(self) -> None:
        took_s = (self._clock_ns() - self._began_ns) / 1e9
        if self._failure:
            text = f"undone after {took_s:.1f} s, the old workers serve: {self._failure}"
            self._report(False, text)
        else:
            done = f"done in {took_s:.1f} s: {self._summary}"
            self._report(True, "; but ".join([done, *self._given_up]))

    def _report(self, done: bool, text: str) -> None:
        if done:
            self.last = text
            _LOG.info("reload %s", text)
        else:
            self.last = f"failed: {text}"
            _LOG.error("reload failed: %s", text)
        self._reported = True
        self._resources.metrics.reloaded(done, self._clock_ns())
        callbacks, self._callbacks = self._callbacks, []
        self._service_status.reloaded()
        for on_done in callbacks:
            on_done(done, text)

    # -- the pool stops -----------------------------------------------------------------

    def stop(self) -> None:
        """Abort the reload under way and refuse the one that is kept, because the pool stops."""
        self._callbacks += self._next
        self._next = []
        self._requested = False
        if self.discovery is not None:
            self.discovery.kill()
        if self._swap_executor is not None:
            self._swap_executor.abandon()
        unreported = self.discovery is not None or not self._reported or bool(self._callbacks)
        self._swap_executor = self._lane_migration = None
        self._unfinished.clear()
        if unreported:
            self._report(False, "the pool is stopping")

    def close(self) -> None:
        """Kill the discovery's process, if there is one, and wait for its end."""
        if self.discovery is not None:
            self.discovery.kill()
            self.discovery.reap(self._clock_ns() + LAST_WAIT_NS)
            self.discovery.close()


def _summary(old: Plan, new: Plan) -> str:
    """The new workers and the differences of two plans in words."""
    workers = ", ".join(
        f"{len(model.all_workers)} worker{'s' * (len(model.all_workers) > 1)} of {model.spec.name}"
        for model in new.models
    )
    return "; ".join([workers, *differences(old, new)])
