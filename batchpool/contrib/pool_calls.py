"""PoolCalls: the calls that a replica of another framework answers by means of a pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from batchpool.client.aio import AsyncClient
from batchpool.client.row_source import only_input
from batchpool.client.served_model import ServedModel, spec_of
from batchpool.client.sync import Client
from batchpool.consume.values import ValueReader, ValueWriter
from batchpool.contrib.node_pool import check_ready
from batchpool.core.errors import ConfigError, InvalidRequest, PoolError

_JSON = "application/json"


class PoolCalls:
    """One model of a pool, for any number of calls at the same time on one asyncio loop.

    model: "" for the only one of the pool; ConfigError where the pool has no such model. Errors of
    calls are those of bp.AsyncClient.
    """

    def __init__(self, socket: str, model: str = "") -> None:
        self.socket = socket
        with Client(socket) as client:
            served = client.models()
        self.model = _chosen(model, served, socket)
        self._client = AsyncClient(socket)

    async def __call__(self, row: Any) -> Any:
        """One row: {input: value}, or the value of the only input; {output: value}.

        For a request over HTTP the row is the JSON of its body, and the answer a response with the
        JSON of its outputs, or with the status and the body of the error.
        """
        if isinstance(row, Request):
            return await self._answer(await row.body())
        if not isinstance(row, Mapping):
            row = {await self._lone_input(): row}
        outputs = await self.infer({name: [value] for name, value in row.items()})
        return {name: rows[0] for name, rows in outputs.items()}

    async def infer(
        self,
        inputs: Mapping[str, Any],
        /,
        *,
        parameters: Mapping[str, Any] | None = None,
        outputs: Iterable[str] | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        errors: str = "raise",
    ) -> dict[str, Any]:
        """n rows, {input: [n, *row shape]}, any n; {output: [n, *row shape]}. The arguments are
        those of bp.AsyncClient.infer."""
        found: dict[str, Any] = await self._client.infer(
            self.model,
            inputs,
            parameters=parameters,
            outputs=outputs,
            timeout_s=timeout_s,
            priority=priority,
            errors=errors,  # type: ignore[call-overload]  # a text here, which `infer` checks
        )
        return found

    async def stream(
        self,
        inputs: Mapping[str, Any],
        /,
        *,
        parameters: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[Any, None]:
        """The tokens of one prompt of a generator, as they are made; see bp.AsyncClient.stream."""
        tokens = self._client.stream(
            self.model, inputs, parameters=parameters, timeout_s=timeout_s, priority=priority
        )
        async with tokens:
            async for token in tokens:
                yield token

    async def check_health(self) -> None:
        """PoolError unless the pool says that it is ready, and serves the model."""
        await asyncio.to_thread(check_ready, self.socket, self.model)

    async def close(self) -> None:
        """End the session with the pool. Calls under way fail with PoolStopped."""
        await self._client.close()

    async def _served(self) -> ServedModel:
        served = await self._client.models()
        return served[_chosen(self.model, served, self.socket)]

    async def _lone_input(self) -> str:
        served = await self._served()
        lone = only_input(spec_of(served))
        if lone is None:
            names = ", ".join(repr(tensor.name) for tensor in served.inputs)
            raise InvalidRequest(
                f"model {self.model!r} has the inputs {names}; a dict of a value for each was"
                " expected"
            )
        return lone

    async def _answer(self, body: bytes) -> Response:
        try:
            served = await self._served()
            row = ValueReader(spec_of(served), "json", {}, "the body").row(body)
            outputs = await self.infer({name: [value] for name, value in row.items()})
            writer = ValueWriter(served.outputs)
            said = writer.value({name: rows[0] for name, rows in outputs.items()})
        except PoolError as error:
            said = msgspec.json.encode(error.body())
            return Response(said, error.status, error.headers(), _JSON)
        return Response(said, media_type=_JSON)


def _chosen(model: str, served: Mapping[str, ServedModel], socket: str) -> str:
    if model in served:
        return model
    names = ", ".join(map(repr, served)) or "none"
    if model:
        raise ConfigError(f"the pool at {socket} serves no model {model!r}; it serves {names}")
    if len(served) != 1:
        raise ConfigError(f"the pool at {socket} serves {names}; model=NAME was expected")
    return next(iter(served))
