"""The pool as the runner of tasks uses it: a local client, behind every interactive request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from batchpool.client.aio_driver import LoopDriver
from batchpool.client.call import Call
from batchpool.client.infer import infer
from batchpool.client.pool_facts import ModelFacts
from batchpool.core.priority import BACKGROUND

_ATTACH_S = 10.0


class Engine(Protocol):
    """Runs rows."""

    async def facts(self, model: str) -> ModelFacts:
        """The tensors and limits of a model. Raises NotFound, or why it cannot be asked now."""

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        parameters: Mapping[str, Any],
        outputs: Iterable[str],
    ) -> dict[str, list[Any]]:
        """{output: an entry for each row}: its value, or its error. Raises the error of all."""

    async def close(self) -> None:
        """Let go of the pool."""


class PoolEngine:
    """The engine of a pool, by its socket; it attaches with the first call. driver: the client."""

    def __init__(self, socket: str) -> None:
        self.driver = LoopDriver(socket, _ATTACH_S, pinned=False)

    async def facts(self, model: str) -> ModelFacts:
        await self.driver.lane_client(model)
        return self.driver.facts(model)

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        parameters: Mapping[str, Any],
        outputs: Iterable[str],
    ) -> dict[str, list[Any]]:
        call = Call(inputs, parameters, outputs, None, BACKGROUND, errors="return")
        return await infer(self.driver, model, call)

    async def close(self) -> None:
        await self.driver.close()
