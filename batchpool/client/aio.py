"""bp.AsyncClient: the pool for one asyncio loop, without a lock or a thread."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, overload

from batchpool.client.aio_driver import LoopDriver
from batchpool.client.async_token_stream import AsyncTokenStream
from batchpool.client.call import Call, named_inputs, socket_of
from batchpool.client.infer import infer
from batchpool.client.lent_slots import OutputViews
from batchpool.client.mapped_rows import RowMap
from batchpool.client.meant import says_what_was_meant
from batchpool.client.served_model import ServedModel
from batchpool.client.stream_call import StreamCall
from batchpool.client.window_call import MapOptions


class AsyncClient:
    """As bp.Client, awaitable. `async with` opens it on the running loop.

    Cancelling the task of a call takes back the rows that have not been dispatched.
    """

    @says_what_was_meant
    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        port: int | None = None,
        timeout_s: float = 10.0,
        pinned: bool = False,
    ) -> None:
        self.socket = socket_of(socket, port)
        self._driver = LoopDriver(self.socket, timeout_s, pinned=pinned)

    async def __aenter__(self) -> AsyncClient:
        await self._driver.usable()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session. Calls under way fail with PoolStopped; results stay valid."""
        await self._driver.close()

    async def models(self) -> dict[str, ServedModel]:
        """The pool's models by name, with their tensors and limits."""
        return await self._driver.models()

    def __repr__(self) -> str:
        return f"<batchpool.AsyncClient of {self.socket}, {self._driver.state}>"

    @overload
    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Any] | None = None,
        /,
        *,
        copy: Literal[False],
        parameters: Mapping[str, Any] | None = None,
        outputs: Iterable[str] | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        wait_for_room: bool = True,
        errors: Literal["raise", "return"] = "raise",
        **tensors: Any,
    ) -> OutputViews: ...

    @overload
    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Any] | None = None,
        /,
        *,
        copy: bool = True,
        parameters: Mapping[str, Any] | None = None,
        outputs: Iterable[str] | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        wait_for_room: bool = True,
        errors: Literal["raise", "return"] = "raise",
        **tensors: Any,
    ) -> dict[str, Any]: ...

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Any] | None = None,
        /,
        *,
        parameters: Mapping[str, Any] | None = None,
        outputs: Iterable[str] | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        wait_for_room: bool = True,
        errors: Literal["raise", "return"] = "raise",
        copy: bool = True,
        **tensors: Any,
    ) -> dict[str, Any]:
        """Run n rows, any n, and return {output: array [n, *row shape]}; see Client.infer.

        With wait_for_room=False a full lane raises Overloaded at once instead of waiting.
        """
        given = named_inputs(inputs, tensors)
        call = Call(
            given, parameters, outputs, timeout_s, priority,
            wait_for_room=wait_for_room, errors=errors, copy=copy,
        )  # fmt: skip
        return await infer(self._driver, model, call)

    def map(
        self,
        model: str,
        inputs: Iterable[Any] | AsyncIterable[Any] | Mapping[str, Any] | None = None,
        /,
        *,
        window: int | None = None,
        ordered: bool = True,
        errors: Literal["raise", "return"] = "raise",
        parameters: Mapping[str, Any] | None = None,
        outputs: Iterable[str] | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        outage_s: float = 60.0,
        **tensors: Any,
    ) -> AsyncGenerator[Any, None]:
        """As Client.map, for `async for`; the rows may be an asynchronous iterable, too."""
        options = MapOptions(parameters, outputs, timeout_s, priority, window, ordered, outage_s)
        mapped = RowMap(inputs, tensors, options, errors)
        return mapped.rows(self._driver, model)

    def stream(
        self,
        model: str,
        inputs: Mapping[str, Any] | None = None,
        /,
        *,
        parameters: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        wait_for_room: bool = True,
        **tensors: Any,
    ) -> AsyncTokenStream:
        """Run one prompt of a generator; its tokens come with `async for`, as they are made.

        Arguments and errors as of Client.stream. It begins with the first use: the first token that
        is asked for, or `async with`. Leaving the loop or the block takes the sequence back.
        """
        call = StreamCall(
            named_inputs(inputs, tensors), parameters, None, timeout_s, priority,
            wait_for_room=wait_for_room,
        )  # fmt: skip
        return AsyncTokenStream(self._driver, model, call)
