"""The interface of a running sequence to whoever passes its tokens on, on one event loop.

`AsyncClient.stream` and the endpoints of a front end give one; what writes responses, in whatever
protocol, needs no more than this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from batchpool.core.tensors.dtypes import Array


class SequenceTokens(Protocol):
    """The tokens of one sequence, while it runs and after."""

    @property
    def tokens(self) -> Array:
        """All tokens so far, those too that `next_tokens` has yet to give; a copy [n, *token
        shape]. They stay after the end, whatever it was."""

    @property
    def finish_reason(self) -> str | None:
        """ "stop" where the generator ended it, "length" where it has all tokens that it may have;
        None while it runs, and where an error or its caller ended it."""

    async def next_tokens(self) -> Array | None:
        """Wait for tokens, and give all that are new as one array [k, *token shape], k >= 1; None
        at the end. Raises, once, the PoolError that ended it, when all tokens before were given.
        One call at a time."""

    def push_to(self, may_push: Callable[[int], bool], push: Callable[[Array], None]) -> None:
        """Give new tokens to `push`, as soon as they are there, while a call of `next_tokens` waits
        and `may_push`, told how many there are, returns True; that call goes on waiting. All others
        come by `next_tokens`, as do the end and what `push` raises."""

    def cancel(self) -> None:
        """Take the sequence back: it gets no further tokens and frees its place. Does nothing after
        the end. What was made until then can still be had."""
