"""AsyncTokenStream: what bp.AsyncClient.stream returns."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Any

import numpy as np

from batchpool.client.running_sequence import RunningSequence
from batchpool.client.stream_call import SequenceDriver, StreamCall, open_stream
from batchpool.client.token_buffer import TokenBuffer
from batchpool.core.tensors.dtypes import Array


class AsyncTokenStream:
    """The tokens of one sequence, for `async for` and `async with`; see AsyncClient.stream.

    It begins with its first use. Leaving the loop or the block, `close`, `cancel` and dropping it
    all take the sequence back.
    """

    def __init__(
        self, driver: SequenceDriver[RunningSequence], model: str, call: StreamCall
    ) -> None:
        self._driver = driver
        self._model = model
        self._call: StreamCall | None = call  # None once it is taken back
        self._buffer = TokenBuffer()
        self._sequence: RunningSequence | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def tokens(self) -> Array:
        """All tokens so far, [n, *token shape]; they stay after the end, whatever it was."""
        return np.empty(0) if self._sequence is None else self._sequence.tokens

    @property
    def finish_reason(self) -> str | None:
        """ "stop" where the generator ended it, "length" where it has all tokens that it may have;
        None while it runs, and where an error or its caller ended it."""
        return None if self._sequence is None else self._sequence.finish_reason

    async def next_tokens(self) -> Array | None:
        """Wait for tokens, and return all that are new as one array [k, *token shape], k >= 1;
        None at the end. The PoolError that ended the sequence is raised, once, when all tokens
        before it were returned."""
        rest = self._buffer.take_rest()
        if rest is not None:
            return rest
        sequence = await self._started()
        return None if sequence is None else await sequence.next_tokens()

    async def _started(self) -> RunningSequence | None:
        call = self._call
        if self._sequence is None and call is not None:
            self._loop = asyncio.get_running_loop()
            sequence = await open_stream(self._driver, self._model, call)
            if self._call is None:  # while it waited for room
                sequence.cancel()
            self._sequence = sequence
        return self._sequence

    def cancel(self) -> None:
        """Take the sequence back: it gets no further tokens. Those that it has can still be read.
        Does nothing after the end."""
        self._call = None
        if self._sequence is not None:
            self._sequence.cancel()

    async def close(self) -> None:
        """As `cancel`."""
        self.cancel()

    def __aiter__(self) -> AsyncTokenStream:
        return self

    async def __anext__(self) -> Any:
        """The next token: a Python number where its shape is (), else an array."""
        if self._buffer.is_empty:
            tokens = await self.next_tokens()
            if tokens is None:
                raise StopAsyncIteration
            self._buffer.put(tokens)
        return self._buffer.take()

    async def __aenter__(self) -> AsyncTokenStream:
        await self._started()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        sequence, loop = getattr(self, "_sequence", None), getattr(self, "_loop", None)
        if sequence is not None and loop is not None and sequence.runs:
            with suppress(RuntimeError):  # the loop has ended, and with it the session
                # Garbage collection may come in any thread, and amid any line of the loop's.
                loop.call_soon_threadsafe(sequence.cancel)
