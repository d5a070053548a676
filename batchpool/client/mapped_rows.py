"""Rows of `map` one by one, out of the windows that they ended in."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from typing import Any

import numpy as np

from batchpool.client.infer import run_blocking
from batchpool.client.row_source import AsyncRows, source_of
from batchpool.client.window_call import MapOptions
from batchpool.client.window_stream import StreamDriver, WindowOutcome, run_windows
from batchpool.core.errors import InvalidRequest


class RowMap:
    """One `map`: its arguments, checked as far as that needs no pool. errors: as of `infer`."""

    def __init__(
        self, inputs: Any, tensors: Mapping[str, Any], options: MapOptions, errors: str
    ) -> None:
        if errors not in ("raise", "return"):
            raise InvalidRequest(f"errors is {errors!r}; 'raise' or 'return' was expected")
        self._source = source_of(inputs, tensors)
        self._options = options
        self._returns_errors = errors == "return"

    @property
    def is_async(self) -> bool:
        """True if only an event loop can read the rows."""
        return isinstance(self._source, AsyncRows)

    async def rows(self, driver: StreamDriver, model: str) -> AsyncGenerator[Any, None]:
        """The results of all rows; see `Client.map`."""
        windows = run_windows(driver, model, self._source, self._options)
        try:
            async for outcome in windows:
                for at in range(outcome.n):
                    result = self._result(outcome, at)
                    yield result if self._options.ordered else (outcome.start + at, result)
                del outcome
        finally:
            await windows.aclose()

    def _result(self, outcome: WindowOutcome, at: int) -> Any:
        error = outcome.errors.get(at)
        if error is None:
            return {name: _own(part[at]) for name, part in outcome.outputs.items()}
        if self._returns_errors:
            return error
        raise error


def _own(row: Any) -> Any:
    """A row that keeps no other row's memory."""
    return row.copy() if isinstance(row, np.ndarray) and row.base is not None else row


def blocking(results: AsyncGenerator[Any, None]) -> Generator[Any, None, None]:
    """An asynchronous generator that never suspends, as an ordinary one."""
    try:
        while True:
            try:
                result = run_blocking(_next(results))
            except StopAsyncIteration:
                return
            yield result
            del result
    finally:
        run_blocking(results.aclose())


async def _next(results: AsyncGenerator[Any, None]) -> Any:
    return await anext(results)
