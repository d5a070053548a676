"""What the sync and the async client do alike with one call's arguments."""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from batchpool.client.chunks import can_join, part
from batchpool.client.lane_client import LaneClient
from batchpool.client.session import ModelFacts
from batchpool.core.config.paths import socket_path
from batchpool.core.config.schema import ServerConfig
from batchpool.core.errors import InvalidRequest, Moved, WorkerLost
from batchpool.core.tensors.rows import Rows, check_rows
from batchpool.core.tensors.spec import ModelSpec

_LONGEST_S = 1e9  # over thirty years; infinity has no whole number of ns


@dataclass(frozen=True, slots=True)
class Call:
    """One checked call: rows, times (CLOCK_MONOTONIC ns), the outputs asked for.

    idempotent: whether its rows may run twice.
    """

    rows: Rows
    start_ns: int
    deadline_ns: int
    timeout_s: float
    outputs: tuple[str, ...] | None
    priority: int
    idempotent: bool = True

    @classmethod
    def of(
        cls,
        lane_client: LaneClient,
        facts: ModelFacts,
        tensors: Mapping[str, Any],
        parameters: Mapping[str, Any] | None,
        outputs: Iterable[str] | None,
        timeout_s: float | None,
        priority: int,
        began: Call | None = None,
    ) -> Call:
        """Check one call's arguments; InvalidRequest or TooLarge say what is wrong.

        began: the same call as it was checked for a lane that has moved; its time runs on.
        """
        if parameters is not None and not isinstance(parameters, Mapping):
            raise InvalidRequest(f"parameters is {parameters!r}; a dict was expected")
        rows = check_rows(lane_client.spec, tensors, parameters)
        if began is not None:
            outputs = began.outputs
        if outputs is not None and not isinstance(outputs, Iterable):
            raise InvalidRequest(f"outputs is {outputs!r}; a list of names was expected")
        given: Any = facts.request_timeout_s if timeout_s is None else timeout_s
        if not isinstance(given, Real) or not float(given) > 0:  # of numpy too
            raise InvalidRequest(f"timeout_s is {given!r}; a positive number was expected")
        timeout_s = float(given)
        try:
            priority = operator.index(priority)  # of numpy too
        except TypeError:
            raise InvalidRequest(f"priority is {priority!r}; 0 to 255 was expected") from None
        if not 0 <= priority <= 255:
            raise InvalidRequest(f"priority is {priority!r}; 0 to 255 was expected")
        names = None if outputs is None else tuple(outputs)
        for name in names or ():
            if name not in lane_client.lane.outputs:
                known = ", ".join(map(repr, lane_client.lane.outputs))
                raise InvalidRequest(
                    f"model {lane_client.spec.name!r} has no output {name!r}; it has {known}"
                )
        if began is not None:
            return replace(began, rows=rows)
        now_ns = time.monotonic_ns()
        deadline_ns = now_ns + int(min(timeout_s, _LONGEST_S) * 1e9)
        return cls(
            rows, now_ns, deadline_ns, timeout_s, names, priority, idempotent=facts.idempotent
        )

    def rest(self, start: int) -> Call:
        """The same for the rows from this one on."""
        return replace(self, rows=part(self.rows, start, self.rows.n))

    def check_rest(self, old: ModelSpec, new: ModelSpec) -> None:
        """These rows, the rest of a call, are for a model that was replaced. Raises Moved if its
        answers would not go together with those that came before: the call begins anew, if its
        rows may run twice; else WorkerLost."""
        if can_join(old, new):
            return
        if self.idempotent:
            raise Moved(f"model {old.name!r} has other tensors now")
        raise WorkerLost(
            f"model {old.name!r} got other tensors before the last {self.rows.n} rows of this call"
            " were sent; the others have run, and with idempotent = false do not run again"
        )

    def late_text(self, model: str) -> str:
        return f"model {model!r} did not answer within {self.timeout_s:g} s"


def default_socket() -> str:
    """Where `batchpool serve` listens for local clients unless it is told otherwise."""
    return socket_path(ServerConfig(), os.environ, os.getuid())
