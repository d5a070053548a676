"""The opening of a stream, written once for the threaded and the asyncio client."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np

from batchpool.client.call import Call
from batchpool.client.infer import Driver
from batchpool.client.lane_client import LaneClient
from batchpool.client.pool_facts import ModelFacts
from batchpool.core.errors import InvalidRequest, Moved
from batchpool.core.tensors.spec import ModelSpec, Tensor

Opened_co = TypeVar("Opened_co", covariant=True)


class SequenceDriver(Driver, Protocol[Opened_co]):
    """The steps of a stream's opening that differ between the two clients."""

    async def start_sequence(self, lane_client: LaneClient, call: Call) -> Opened_co | None:
        """Submit the one row of a call and follow it; None when the lane has no room and the call
        waits for some. Raises Moved, or one of the 503s."""


class StreamCall(Call):
    """The arguments of one `stream`, whose tensors may be one row without a dimension for rows."""

    __slots__ = ()
    function = "stream"

    def check(self, lane_client: LaneClient, facts: ModelFacts) -> None:
        """As of `Call`; InvalidRequest too for a model that is no generator, and for many rows."""
        spec = lane_client.spec
        require_generator(spec)
        declared = {tensor.name: tensor for tensor in spec.inputs}
        self.tensors = {
            name: _as_rows(declared[name], value) if name in declared else value
            for name, value in self.tensors.items()
        }
        super().check(lane_client, facts)
        require_one_row(spec, self.rows.n)


def require_generator(spec: ModelSpec) -> None:
    """Raise InvalidRequest for a model that does not make tokens one by one."""
    if not spec.generates:
        raise InvalidRequest(
            f"model {spec.name!r} is no generator: it has all its outputs at once, which infer"
            " returns"
        )


def require_one_row(spec: ModelSpec, n: int) -> None:
    """Raise InvalidRequest unless a stream has one row."""
    if n != 1:
        raise InvalidRequest(
            f"{n} prompts came; a stream has one: give each to model {spec.name!r} in a stream of"
            " its own"
        )


def _as_rows(tensor: Tensor, value: Any) -> Any:
    """The value as rows [1, *row shape] where it is one row without that dimension."""
    try:
        is_row = np.ndim(value) == len(tensor.shape)
    except ValueError:  # lists of different lengths, which `check` knows how to take
        return value
    if not is_row:
        return value
    return value[np.newaxis] if isinstance(value, np.ndarray) else [value]


async def open_stream(driver: SequenceDriver[Opened_co], model: str, call: StreamCall) -> Opened_co:
    """Submit a call's row, to the lane that the model has by then, and return what follows it."""
    while True:
        lane_client = await driver.lane_client(model)
        call.check(lane_client, driver.facts(model))
        try:
            while (opened := await driver.start_sequence(lane_client, call)) is None:
                await driver.wait_for_room(lane_client, call.rows, call)
            return opened
        except Moved:
            driver.leave_moved()
