"""Call: the arguments of one `infer` or `submit`, made once and passed on."""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from batchpool.client.chunks import can_join
from batchpool.client.lane_client import LaneClient
from batchpool.client.meant import meant
from batchpool.client.pending_request import PendingRequest
from batchpool.client.pool_facts import ModelFacts
from batchpool.client.refused_rows import Refused, check_each
from batchpool.core.config.paths import socket_path
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import ConfigError, InvalidRequest, Moved, PoolError, WorkerLost
from batchpool.core.tensors.packed_strings import is_arrow_column
from batchpool.core.tensors.rows import Rows, check_rows, unknown_input
from batchpool.core.tensors.spec import ModelSpec

_TIMEOUT_MAX_S = 1e9  # over thirty years; infinity has no whole number of ns


class Call:
    """One call's arguments as the user gave them, and what `check` makes of them for a lane.

    rows: the checked tensors and parameters. start_ns, deadline_ns: CLOCK_MONOTONIC, set by the
    first `check`. outputs: the names asked for; None means all. idempotent: the rows may run twice.
    wait_for_room: a full lane makes the call wait; else it raises Overloaded. returns_errors: the
    errors of rows stand in their places. copies: else outputs may be views of the lane. refused:
    the errors of rows that are not sent. A timeout_s of the caller's holds for the whole call; the
    model's request_timeout_s for each of its windows, so that a call may have any number of rows.
    """

    __slots__ = (
        "copies",
        "deadline_ns",
        "idempotent",
        "outputs",
        "parameters",
        "priority",
        "refused",
        "returns_errors",
        "rows",
        "start_ns",
        "tensors",
        "timed_by_window",
        "timeout_s",
        "wait_for_room",
    )

    rows: Rows
    idempotent: bool
    function: ClassVar[str] = "infer"  # of the clients, for messages about its keywords

    def __init__(
        self,
        tensors: Mapping[str, Any],
        parameters: Mapping[str, Any] | None = None,
        outputs: Iterable[str] | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        *,
        wait_for_room: bool = True,
        errors: str = "raise",
        copy: bool = True,
    ) -> None:
        self.tensors = tensors
        for name, value in tensors.items():
            # An iterator would be used up by the first check.
            if type(value) is not np.ndarray and hasattr(value, "__next__"):
                self.tensors = {**self.tensors, name: list(value)}
        self.parameters = parameters
        self.outputs = outputs
        self.timeout_s = timeout_s
        self.priority = priority
        self.wait_for_room = wait_for_room
        if errors not in ("raise", "return"):
            raise InvalidRequest(f"errors is {errors!r}; 'raise' or 'return' was expected")
        self.returns_errors = errors == "return"
        self.copies = bool(copy)
        if self.returns_errors and not self.copies:
            raise InvalidRequest(
                "copy=False came with errors='return', whose outputs are lists of rows; one of them"
                " was expected"
            )
        self.refused: Refused = {}
        self.timed_by_window = timeout_s is None
        self.start_ns = 0
        self.deadline_ns = 0

    def check(self, lane_client: LaneClient, facts: ModelFacts) -> None:
        """Check the arguments for a lane; InvalidRequest or TooLarge say what is wrong.

        Where the model moves, the call is checked again for its new lane; its time runs on.
        """
        parameters, outputs = self.parameters, self.outputs
        if parameters is not None and not isinstance(parameters, Mapping):
            raise InvalidRequest(f"parameters is {parameters!r}; a dict was expected")
        try:
            if self.returns_errors:
                self.rows, self.refused = check_each(
                    lane_client.spec, self.tensors, parameters, self._first_number()
                )
            else:
                self.rows = check_rows(lane_client.spec, self.tensors, parameters)
        except InvalidRequest as exc:
            unknown = unknown_input(lane_client.spec, self.tensors)
            if unknown is None or (hint := meant(unknown, self.function, lane_client.spec)) == "":
                raise
            raise InvalidRequest(exc.message + hint) from None
        timeout: Any = facts.request_timeout_s if self.timeout_s is None else self.timeout_s
        # numpy's numbers too, which take longer to tell
        is_number = type(timeout) is float or isinstance(timeout, Real)
        if not is_number or not float(timeout) > 0:
            raise InvalidRequest(f"timeout_s is {timeout!r}; a positive number was expected")
        try:
            priority = operator.index(self.priority)  # numpy's numbers too
        except TypeError:
            priority = -1
        if not 0 <= priority <= 255:
            raise InvalidRequest(f"priority is {self.priority!r}; 0 to 255 was expected")
        if outputs is not None:
            if isinstance(outputs, (str, bytes)) or not isinstance(outputs, Iterable):
                raise InvalidRequest(f"outputs is {outputs!r}; a list of names was expected")
            self.outputs = outputs = tuple(outputs)
            for name in outputs:
                if name not in lane_client.lane.outputs:
                    known = ", ".join(map(repr, lane_client.lane.outputs))
                    raise InvalidRequest(
                        f"model {lane_client.spec.name!r} has no output {name!r}; it has {known}"
                    )
        self.priority = priority
        if not self.start_ns:
            self.timeout_s = timeout = float(timeout)
            self.idempotent = facts.idempotent
            self._start(time.monotonic_ns())

    def _first_number(self) -> int:
        """The number that errors call the first row by."""
        return 0

    def _start(self, now_ns: int) -> None:
        self.start_ns = now_ns
        self.deadline_ns = now_ns + int(min(self.timeout_s or 0.0, _TIMEOUT_MAX_S) * 1e9)

    def begin_window(self) -> None:
        """Begin a window after the first: it has the model's request_timeout_s for itself."""
        if self.timed_by_window:
            self._start(time.monotonic_ns())

    def take(self, lane_client: LaneClient, pending: PendingRequest) -> dict[str, Any]:
        """The outputs of a finished request, one array or, with returns_errors, one list each."""
        if self.returns_errors:
            try:
                return lane_client.listed(pending, self.outputs)
            finally:
                lane_client.release(pending)
        if self.copies or pending.n != self.rows.n:  # windows are joined, which copies them
            return lane_client.result(pending, self.outputs)
        return lane_client.lent.lend(lane_client, pending, self.outputs)

    def error_rows(self, lane_client: LaneClient, n: int, error: PoolError) -> dict[str, Any]:
        """The outputs of n rows that all have this error."""
        names = lane_client.lane.outputs if self.outputs is None else self.outputs
        return {name: [error] * n for name in names}

    def check_rest(self, old: ModelSpec, new: ModelSpec, rest: int) -> None:
        """Check that the last `rest` rows may go to a new lane, after the others ran in the old.

        Where the outputs of both lanes cannot be joined, it raises Moved, so that the whole call
        begins anew; or WorkerLost where rows may not run twice.
        """
        if can_join(old, new):
            return
        if self.idempotent:
            raise Moved(f"model {old.name!r} has other tensors now")
        raise WorkerLost(
            f"model {old.name!r} got other tensors before the last {rest} rows of this call"
            " were sent; the others have run, and with idempotent = false do not run again"
        )

    def late_text(self, model: str) -> str:
        """The text of DeadlineExceeded."""
        return f"model {model!r} did not answer within {self.timeout_s:g} s"


def named_inputs(inputs: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tensors of a call by name: those of its dict and its keywords."""
    if inputs is None:
        return tensors
    if hasattr(inputs, "columns") and hasattr(inputs, "__getitem__"):
        names = list(inputs.columns)
        if names and is_arrow_column(names[0]):
            names = inputs.column_names
        inputs = {str(name): inputs[name] for name in names}
    if not isinstance(inputs, Mapping):
        raise InvalidRequest(
            f"the inputs are a {type(inputs).__name__}; a dict of them by name, a data frame with"
            " a column for each, or keywords, as in infer('model', x=rows), were expected"
        )
    return {**inputs, **tensors}


def socket_of(socket: str | os.PathLike[str] | None, port: int | None) -> str:
    """The control socket of the pool that a client names, by path or by HTTP port.

    InvalidRequest for both together, for what is no path and for what is no port.
    """
    if socket is not None and port is not None:
        raise InvalidRequest(
            f"socket = {str(socket)!r} and port = {port!r} came together; one of them was expected"
        )
    if socket is not None:
        try:
            return os.fspath(socket)
        except TypeError:
            hint = f"; did you mean port={socket}?" if isinstance(socket, int) else ""
            raise InvalidRequest(
                f"socket is {socket!r}; the path of a pool's unix socket was expected{hint}"
            ) from None
    try:
        server = ServerConfig() if port is None else ServerConfig(port=operator.index(port))
    except (ConfigError, TypeError):
        raise InvalidRequest(
            f"port is {port!r}; the number of the pool's HTTP port was expected"
        ) from None
    return socket_path(server, os.environ, os.getuid())
