"""WindowCall: one window of a `map`, whose rows end one by one, and the options of all of them."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchpool.client.call import Call
from batchpool.client.chunks import part
from batchpool.client.lane_client import LaneClient
from batchpool.client.meant import meant
from batchpool.client.pending_request import PendingRequest
from batchpool.client.pool_facts import ModelFacts
from batchpool.client.refused_rows import picked
from batchpool.core.errors import InvalidRequest, PoolError, TooLarge
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.rows import (
    check_input_names,
    check_parameters,
    check_rows,
    unknown_input,
)
from batchpool.core.tensors.spec import ModelSpec

_NOWHERE: Mapping[str, Array] = {}


@dataclass(frozen=True)
class MapOptions:
    """The arguments of a `map` that hold for all its rows.

    window: most rows that are read and not yielded; None for as many as the lane takes. ordered:
    results come in the order of the rows. outage_s: the longest time to wait for a pool that does
    not serve. first: the number of the first row. The rest: as of `Call`. InvalidRequest for what
    cannot work.
    """

    parameters: Mapping[str, Any] | None = None
    outputs: Iterable[str] | None = None
    timeout_s: float | None = None
    priority: int = 0
    window: int | None = None
    ordered: bool = True
    outage_s: float = 60.0
    first: int = 0
    _names: tuple[str, ...] | None = field(init=False, default=None)
    _checked: list[Any] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.window is not None:
            try:
                window = operator.index(self.window)
            except TypeError:
                window = 0
            if window < 1:
                raise InvalidRequest(
                    f"window is {self.window!r}; a number of rows, at least 1, was expected"
                )
        if not float(self.outage_s) >= 0:
            raise InvalidRequest(
                f"outage_s is {self.outage_s!r}; a number of seconds, 0 or more, was expected"
            )
        if self.outputs is not None:
            if isinstance(self.outputs, (str, bytes)) or not isinstance(self.outputs, Iterable):
                raise InvalidRequest(f"outputs is {self.outputs!r}; a list of names was expected")
            object.__setattr__(self, "_names", tuple(self.outputs))
            if not self._names:
                raise InvalidRequest("outputs is empty; the names of some outputs were expected")

    def call(
        self, tensors: Mapping[str, Any], start: int, outputs_to: Mapping[str, Array] = _NOWHERE
    ) -> WindowCall:
        """The call of one window, whose first row has the number `start`."""
        return WindowCall(self, tensors, self._names, start, outputs_to)

    def check(self, spec: ModelSpec, names: Iterable[str]) -> None:
        """Raise InvalidRequest for what is wrong with the arguments of all rows alike."""
        names = tuple(names)
        if self._checked and self._checked[-1] == (id(spec), names):
            return
        check_parameters(spec, dict(self.parameters or {}))
        try:
            check_input_names(spec, names)
        except InvalidRequest as exc:
            hint = meant(unknown_input(spec, names) or "", "map", spec)
            raise InvalidRequest(exc.message + hint) from None
        for tensor in spec.inputs:
            if tensor.name not in names and tensor.default is None:
                raise InvalidRequest(f"input {tensor.name!r} of model {spec.name!r} is missing")
        self._checked[:] = [spec, (id(spec), names)]  # with the spec, whose id is no other's then


class WindowCall(Call):
    """The call of one window. start: the number of its first row.

    errors: of the rows that have one, by their place among the n rows that the window has. Rows
    that do not fit the model's tensors are not sent; `sends` is false where none is. outputs_to:
    arrays [n, *row shape] that take outputs where all rows are good, as of `RowWindow`.
    """

    function = "map"
    __slots__ = ("_checked_for", "errors", "n", "options", "outputs_to", "places", "start")

    def __init__(
        self,
        options: MapOptions,
        tensors: Mapping[str, Any],
        outputs: tuple[str, ...] | None,
        start: int,
        outputs_to: Mapping[str, Array],
    ) -> None:
        super().__init__(
            tensors,
            options.parameters,
            outputs,
            options.timeout_s,
            options.priority,
            errors="return",
        )
        self.options = options
        self.start = start
        self.outputs_to = outputs_to
        self.n = len(next(iter(tensors.values())))
        self.errors: dict[int, PoolError] = {}
        self.places: Sequence[int] = range(self.n)
        self._checked_for: ModelSpec | None = None  # whose rows `rows` are already

    @property
    def sends(self) -> bool:
        """True if some row is sent."""
        return len(self.places) > 0

    def check(self, lane_client: LaneClient, facts: ModelFacts) -> None:
        """As of `Call`, but rows that are all refused have their errors, too."""
        if self._checked_for is lane_client.spec:
            return
        self.options.check(lane_client.spec, self.tensors)
        try:
            super().check(lane_client, facts)
            self.errors = dict(self.refused)
        except (InvalidRequest, TooLarge):
            self.errors = self._errors_of_all(lane_client.spec)
            if len(self.errors) < self.n:
                raise  # no row is to blame
        self.places = range(self.n)
        if self.errors:
            self.places = [i for i in self.places if i not in self.errors]

    def check_whole(self, lane_client: LaneClient, facts: ModelFacts) -> None:
        """Check the rows of several windows together, before they are cut. Where one of them does
        not fit, nothing is raised: each window is checked for itself, and tells of its own."""
        self.returns_errors = False
        try:
            super().check(lane_client, facts)
        except (InvalidRequest, TooLarge):
            return
        finally:
            self.returns_errors = True
        self._checked_for = lane_client.spec

    def cut(self, size: int) -> Iterator[WindowCall]:
        """The call in windows of at most so many rows; they are checked where it is."""
        if self.n <= size:
            yield self
            return
        for start in range(0, self.n, size):
            stop = min(start + size, self.n)
            tensors = {name: column[start:stop] for name, column in self.tensors.items()}
            outputs_to = {name: rows[start:stop] for name, rows in self.outputs_to.items()}
            one = self.options.call(tensors, self.start + start, outputs_to)
            if self._checked_for is not None:
                one.rows = part(self.rows, start, stop)
                one.timeout_s, one.priority = self.timeout_s, self.priority
                one.outputs, one.idempotent = self.outputs, self.idempotent
                one._checked_for = self._checked_for
            yield one

    def _errors_of_all(self, spec: ModelSpec) -> dict[int, PoolError]:
        found: dict[int, PoolError] = {}
        for i in range(self.n):
            try:
                one = {name: picked(column, [i]) for name, column in self.tensors.items()}
                check_rows(spec, one, self.parameters)
            except (InvalidRequest, TooLarge) as exc:
                error = type(exc)(f"row {self.start + i}: {exc.message}")
                error.row = self.start + i
                found[i] = error
        return found

    def _first_number(self) -> int:
        return self.start

    def begin(self) -> None:
        """The time of the window begins now, as it is its turn to be sent."""
        self._start(time.monotonic_ns())

    def part(self, places: Sequence[int]) -> WindowCall:
        """The call of some rows of this one, by their places."""
        tensors = {name: picked(column, list(places)) for name, column in self.tensors.items()}
        return self.options.call(tensors, self.start + places[0])

    def take(self, lane_client: LaneClient, pending: PendingRequest) -> dict[str, Any]:
        """The outputs of a finished request: arrays, or lists where a row of it has an error,
        which stands in its place."""
        if lane_client.lane.status[pending.where].any():
            return super().take(lane_client, pending)
        if not self.outputs_to or pending.n < self.n:
            return lane_client.result(pending, self.outputs, all_good=True)
        found = lane_client.result(pending, self.outputs, copy=False, all_good=True)
        try:
            for name, rows in self.outputs_to.items():
                rows[...] = found[name]
            return {**found, **self.outputs_to}
        finally:
            lane_client.release(pending)
