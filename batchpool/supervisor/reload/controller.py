"""Reloads from being asked for to being told: one at a time, each with a survey of its own.

asked      by SIGHUP, or by a caller who waits for the end. While one is under way, or while
           the pool still loads, the next is kept; several that are kept are one
surveyed   another process reads the configuration and asks the models what they are
refused    the configuration is wrong, or a change needs a restart: nothing has happened
carried    out, by supervisor/reload/worker_swap_executor.py: done, or undone
cancelled  by an operator, before every new worker serves: nothing was changed, or undone
given up   the pool itself stops meanwhile

A worker that does not end although it was killed, as one whose driver hangs, is left behind: it is
told of, keeps its entry and its lanes as long as it is there, and no later reload waits for it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from batchpool.core.config.paths import socket_path
from batchpool.core.errors import ConfigError, InvalidRequest, StartError
from batchpool.supervisor.children.child import LAST_WAIT_NS, Child, ProcessSlot, start_child
from batchpool.supervisor.fleet.processes import ProcessFleet
from batchpool.supervisor.host.service_status import ServiceStatus
from batchpool.supervisor.plan.diff import differences, revised
from batchpool.supervisor.plan.discover import from_message, made_by
from batchpool.supervisor.plan.plan import Plan
from batchpool.supervisor.reload.lane_migration_executor import LaneMigrationExecutor
from batchpool.supervisor.reload.worker_swap import SwapPhase
from batchpool.supervisor.reload.worker_swap_executor import WorkerSwapExecutor
from batchpool.supervisor.resources.client_connection import ClientConnection
from batchpool.supervisor.resources.resources import PoolResources

_LOG = logging.getLogger("batchpool.supervisor")

Told = Callable[[bool, str], None]  # whether it was done; what was done, or why not


class ReloadController:
    """All reloads of one pool. words: what `batchpool` was started with, as "serve pool.toml".

    watch: the supervisor's event loop. clients: all that are attached. Nothing here waits.
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
        self._ours = made_by()
        self._wanted = False
        self._next: list[Told] = []  # who waits for the one that is kept
        self._waiting: list[Told] = []  # who waits for the one under way
        self._began_ns = 0
        self.survey: Child | None = None
        self._found: dict[str, Any] | None = None
        self._swap_executor: WorkerSwapExecutor | None = None
        self._moving: LaneMigrationExecutor | None = None
        self._left: list[
            LaneMigrationExecutor
        ] = []  # of earlier ones, with entries that still have something
        self._told = True  # how the one under way has ended
        self._failure = ""  # why it goes back
        self._left_behind: list[str] = []  # who does not end
        self._summary = ""
        self.last = ""  # how the last one ended

    @property
    def busy(self) -> bool:
        """Whether one is under way."""
        return not (self.survey is None and self._swap_executor is None and self._moving is None)

    def state(self) -> str:
        """What it is doing, for people; "" for nothing."""
        if self.survey is not None:
            return "reading the configuration"
        if self._moving is not None and self._told:
            left = self._moving.leaving()
            return f"waiting for {left}" if left else "ending what was replaced"
        if self._swap_executor is None:
            return ""
        serving, of = self._swap_executor.reload.progress()
        if self._swap_executor.reload.failure:
            return f"going back, {serving} of {of} new workers still serve"
        return f"{serving} of {of} new workers serve"

    # -- asked and begun ----------------------------------------------------------------

    def ask(self, told: Told | None = None) -> None:
        """Reload as soon as that can be. told: called at its end."""
        self._wanted = True
        if told is not None:
            self._next.append(told)

    def cancel(self) -> str:
        """Give up the one under way; its end is told as ever. Returns what comes of that;
        InvalidRequest if there is none, or it is too late."""
        if self.survey is not None:
            self.survey.cause = "was cancelled"
            self.survey.kill()
            return "cancelled: nothing was changed"
        if self._swap_executor is None or self._told:
            raise InvalidRequest("no reload is under way")
        if self._swap_executor.reload.phase is SwapPhase.COMMITTED:
            raise InvalidRequest("it is too late: the new workers serve, and the old ones end")
        self._swap_executor.reload.fail("it was cancelled")
        return "cancelled: the old workers serve"

    def tick(self) -> None:
        """Do what is to be done now."""
        if self.survey is not None and self.survey.is_stuck(self._clock_ns()):
            self.survey.cause += " and does not end although it was killed"
            self.survey_gone(self.survey)
        for moving in self._left:
            moving.step()
        self._left = [moving for moving in self._left if not moving.over]
        if self._moving is not None:
            self._carry_on(self._moving)
        if (
            self._wanted
            and not self.busy
            and self._process_fleet.was_ready
            and not self._process_fleet.stopping
        ):
            self._begin()

    def _begin(self) -> None:
        self._wanted = False
        self._waiting, self._next = self._next, []
        self._began_ns = self._clock_ns()
        self._found = None
        _LOG.info("reloading: reading the configuration")
        try:
            self.survey = start_child(
                "survey",
                ["batchpool.cli.reread"],
                ProcessSlot("survey"),
                started_ns=self._began_ns,
                flags=[*self._process_fleet.flags(self._resources.plan.server), "--", *self._words],
            )
        except StartError as exc:
            self._tell(False, f"nothing was changed: {exc}")
        else:
            self._watch(self.survey)
            self._service_status.reloading(self._began_ns)

    # -- surveyed -----------------------------------------------------------------------

    def survey_says(self, message: dict[str, Any]) -> None:
        self._found = message

    def survey_gone(self, child: Child) -> None:
        """It has said what it found, or ended without a word."""
        if child is not self.survey:
            return  # it was waited for no longer
        self.survey = None
        if self._process_fleet.stopping:
            return
        try:
            if self._found is None or child.cause:  # cancelled, though it had said what it found
                raise StartError(f"the process that reads the configuration {child.reason()}")
            new = self._next_plan(self._found)
        except (ConfigError, StartError) as exc:
            self._tell(False, f"nothing was changed: {exc}")
            return
        self._go_over(new)

    def _next_plan(self, message: dict[str, Any]) -> Plan:
        if message["op"] == "refused":
            raise ConfigError(message["error"])
        found = from_message(message, self._ours)
        path = socket_path(found.config.server, os.environ, os.getuid())
        config = self._resources.activated.configured(found.config, path)
        plan, resources = found.plan(config, config.server.socket), self._resources
        names = resources.counters.model_names()
        return revised(
            resources.plan, plan, names, resources.max_lanes, self._process_fleet.entries
        )

    # -- carried out --------------------------------------------------------------------

    def _go_over(self, new: Plan) -> None:
        old = self._resources.plan
        self._summary = "; ".join(
            [
                ", ".join(
                    f"{len(model.workers)} worker{'s' * (len(model.workers) > 1)}"
                    f" of {model.spec.name}"
                    for model in new.models
                ),
                *differences(old, new),
            ]
        )
        self._process_fleet.plan_begins(old, new)
        process_fleet, clock_ns = self._process_fleet, self._clock_ns
        moving = self._moving = LaneMigrationExecutor(
            old, new, self._resources, process_fleet, self._clients, clock_ns
        )
        self._told, self._failure = False, ""
        self._swap_executor = WorkerSwapExecutor(
            old, new, process_fleet.workers, moving, lambda: self._commit(old, new, moving)
        )
        self._carry_on(moving)
        self._service_status.look()

    def _commit(self, old: Plan, new: Plan, moving: LaneMigrationExecutor) -> None:
        self._process_fleet.plan_counts(old, new)
        moving.commit()
        self._service_status.go_by(new.server)

    def _carry_on(self, moving: LaneMigrationExecutor) -> None:
        moving.step()
        swap_executor = self._swap_executor
        if swap_executor is not None:
            swap_executor.step()
            if moving.failure:
                swap_executor.reload.fail(moving.failure)
                swap_executor.step()
            self._failure = swap_executor.reload.failure
            self._left_behind = swap_executor.given_up
            if self._failure:
                moving.undo()
            elif swap_executor.reload.served and not self._told:
                self._tell_end()
            if not swap_executor.over:
                return
            self._swap_executor = None
            self._process_fleet.plan_settled()
            moving.settle()
        if moving.over or moving.waits_for_stuck:
            self._moving = None
            self._left += [] if moving.over else [moving]
            if not self._told:
                self._tell_end()

    def _tell_end(self) -> None:
        took_s = (self._clock_ns() - self._began_ns) / 1e9
        left = self._left_behind
        if self._failure:
            why = f"undone after {took_s:.1f} s, the old workers serve: {self._failure}"
            self._tell(False, why)
        else:
            self._tell(True, "; but ".join([f"done in {took_s:.1f} s: {self._summary}", *left]))

    def _tell(self, done: bool, text: str) -> None:
        if done:
            self.last = text
            _LOG.info("reload %s", text)
        else:
            self.last = f"failed: {text}"
            _LOG.error("reload failed: %s", text)
        self._told = True
        self._resources.ledger.reloaded(done, self._clock_ns())
        waiting, self._waiting = self._waiting, []
        self._service_status.reloaded()
        for told in waiting:
            told(done, text)

    # -- given up -----------------------------------------------------------------------

    def stop(self) -> None:
        """The pool stops: no reload goes on."""
        self._waiting += self._next
        self._next = []
        self._wanted = False
        if self.survey is not None:
            self.survey.kill()
        if self._swap_executor is not None:
            self._swap_executor.abandon()
        unknown = self.survey is not None or not self._told or bool(self._waiting)
        self._swap_executor = self._moving = None
        self._left.clear()
        if unknown:
            self._tell(False, "the pool is stopping")

    def close(self) -> None:
        """End the survey's process, if there is one, and reap it."""
        if self.survey is not None:
            self.survey.kill()
            self.survey.reap(self._clock_ns() + LAST_WAIT_NS)
            self.survey.close()
