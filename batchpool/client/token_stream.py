"""TokenStream: what bp.Client.stream returns."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from batchpool.client.sync_driver import ThreadDriver
from batchpool.client.thread_sequence import ThreadSequence
from batchpool.client.token_buffer import TokenBuffer
from batchpool.core.tensors.dtypes import Array


class TokenStream:
    """The tokens of one sequence, for `for` and `with`; see Client.stream.

    Leaving the loop or the block, `close`, `cancel` and dropping it all take the sequence back.
    """

    def __init__(self, driver: ThreadDriver, sequence: ThreadSequence) -> None:
        self._driver = driver
        self._sequence = sequence
        self._buffer = TokenBuffer()

    @property
    def tokens(self) -> Array:
        """All tokens so far, [n, *token shape]; they stay after the end, whatever it was."""
        self._driver.check_process()
        return self._sequence.tokens()

    @property
    def finish_reason(self) -> str | None:
        """ "stop" where the generator ended it, "length" where it has all tokens that it may have;
        None while it runs, and where an error or its caller ended it."""
        return self._sequence.finish_reason

    def next_tokens(self) -> Array | None:
        """Wait for tokens, and return all that are new as one array [k, *token shape], k >= 1;
        None at the end. The PoolError that ended the sequence is raised, once, when all tokens
        before it were returned."""
        rest = self._buffer.take_rest()
        if rest is not None:
            return rest
        self._driver.check_process()
        return self._sequence.next_tokens()

    def cancel(self) -> None:
        """Take the sequence back: it gets no further tokens. Those that it has can still be read.
        Does nothing after the end."""
        if self._driver.is_ours:
            self._sequence.cancel()

    def close(self) -> None:
        """As `cancel`."""
        self.cancel()

    def __iter__(self) -> TokenStream:
        return self

    def __next__(self) -> Any:
        """The next token: a Python number where its shape is (), else an array."""
        if self._buffer.is_empty:
            tokens = self.next_tokens()
            if tokens is None:
                raise StopIteration
            self._buffer.put(tokens)
        return self._buffer.take()

    def __enter__(self) -> TokenStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        self._sequence.forsake()
