"""bp.Client: the pool for ordinary threads."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal, overload

from batchpool.client.call import Call, named_inputs, socket_of
from batchpool.client.infer import infer, run_blocking
from batchpool.client.lent_slots import OutputViews
from batchpool.client.mapped_rows import RowMap, blocking
from batchpool.client.meant import says_what_was_meant
from batchpool.client.served_model import ServedModel
from batchpool.client.stream_call import StreamCall, open_stream
from batchpool.client.sync_driver import ThreadDriver
from batchpool.client.token_stream import TokenStream
from batchpool.client.window_call import MapOptions
from batchpool.core.errors import InvalidRequest, Moved


class Client:
    """A connection to a pool on this machine, through shared memory; any thread may use it.

    socket: the pool's unix socket; by default that of `batchpool serve` for the HTTP port `port`,
    which is 8000 if it is not given. timeout_s: for attaching. pinned: GPUs copy rows of 2 KiB or
    more straight from and to this client's memory, which takes about 0.2 ms a MiB to prepare at
    the first use of a model. When the pool stops, all under way fails with PoolStopped; the next
    call connects anew.
    """

    @says_what_was_meant
    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        port: int | None = None,
        timeout_s: float = 10.0,
        pinned: bool = False,
    ):
        self.socket = socket_of(socket, port)
        self._driver = ThreadDriver(self.socket, timeout_s, pinned=pinned)

    @overload
    def infer(
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
        errors: Literal["raise", "return"] = "raise",
        **tensors: Any,
    ) -> OutputViews: ...

    @overload
    def infer(
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
        errors: Literal["raise", "return"] = "raise",
        **tensors: Any,
    ) -> dict[str, Any]: ...

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Any] | None = None,
        /,
        *,
        parameters: Mapping[str, Any] | None = None,
        outputs: Iterable[str] | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        errors: Literal["raise", "return"] = "raise",
        copy: bool = True,
        **tensors: Any,
    ) -> dict[str, Any]:
        """Run n rows, any n, and return {output: array [n, *row shape]}.

        An output with dynamic dimensions is a list of n arrays where its rows differ in size. An
        input with dynamic dimensions may be such a list.

        Tensors come as keywords (`x=rows`) or in `inputs`; each is [n, *row shape]. More rows
        than the lane holds go in windows that fit it; a full lane makes the call wait. Where a
        reload gives the model other tensors meanwhile, the call is checked and run with those; if
        windows of it have run and `idempotent` is false, it fails with WorkerLost instead.
        With errors="return" every output is a list with one entry a row: the row's array, or the
        PoolError that it ended with; an error of one row costs no other. What concerns the whole
        call (wrong arguments, or before any row was sent) is raised.
        With copy=False the outputs are a bp.OutputViews: its arrays are views of this client's lane
        where that is possible, which saves the copy of outputs of megabytes, and their slots stay
        claimed while anything refers to them. A call that would need these slots is Overloaded.
        A timeout_s is the time of the whole call. Without one each window of rows has the model's
        request_timeout_s for itself, from when it is its turn to be sent, so that a call may have
        any number of rows. What is late is DeadlineExceeded; every other PoolError has its reason.
        """
        given = named_inputs(inputs, tensors)
        call = Call(given, parameters, outputs, timeout_s, priority, errors=errors, copy=copy)
        return run_blocking(infer(self._driver, model, call))

    def submit(
        self,
        model: str,
        inputs: Mapping[str, Any] | None = None,
        /,
        *,
        parameters: Mapping[str, Any] | None = None,
        outputs: Iterable[str] | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        errors: Literal["raise", "return"] = "raise",
        copy: bool = True,
        **tensors: Any,
    ) -> Future[dict[str, Any]]:
        """Submit rows as `infer` does and return a Future of the outputs without waiting.

        Overloaded when the lane is full. The rows are copied before this returns. At most the
        lane's bound of rows at once. errors, copy: as of `infer`.
        """
        given = named_inputs(inputs, tensors)
        call = Call(given, parameters, outputs, timeout_s, priority, errors=errors, copy=copy)
        driver = self._driver
        while True:
            lane_client = driver.open_lane_client(model)
            call.check(lane_client, driver.facts(model))
            try:
                return driver.submit_future(lane_client, call)
            except Moved:
                driver.leave_moved()

    def map(
        self,
        model: str,
        inputs: Iterable[Any] | Mapping[str, Any] | None = None,
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
    ) -> Generator[Any, None, None]:
        """Run the rows of an iterable of any length; returns an iterator over their outputs.

        `inputs`: an iterable of rows, each a dict {input: value}, or the value alone where the
        model has one input; or columns as of `infer`, by keywords too. It yields one
        {output: row} for each row, in their order; with ordered=False a pair (number of the row,
        outputs) as soon as each is there. Rows are read as they are needed: at most `window` of
        them are under way or wait for the caller (default: as many as the lane takes), so the
        memory stays the same however many rows there are.

        Weather is waited out: a full lane, a pool that drains, restarts or reloads; its rows are
        sent again. A pool that serves nothing for outage_s is raised, as is what concerns all rows
        (a wrong name, a model that got other tensors). The error of a row (InvalidInput,
        ModelError, WorkerLost, a row that does not fit the tensors) is raised in its turn with
        `row`, its number; with errors="return" it is yielded in the place of its outputs, and the
        rest goes on. timeout_s: of each window of rows, whose rows then are not sent again; by
        default the model's request_timeout_s, and three tries. Leaving
        the iterator, or Ctrl-C in it, takes back what is under way.
        """
        options = MapOptions(parameters, outputs, timeout_s, priority, window, ordered, outage_s)
        mapped = RowMap(inputs, tensors, options, errors)
        if mapped.is_async:
            raise InvalidRequest(
                "the rows are an asynchronous iterable; an ordinary one, or bp.AsyncClient, was"
                " expected"
            )
        return blocking(mapped.rows(self._driver, model))

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
    ) -> TokenStream:
        """Run one prompt of a generator; returns an iterator over its tokens, as they are made.

            for token in pool.stream("story", prompt=ids, parameters={"max_tokens": 64}):
                ...

        The prompt is one row, [n, ...] or [1, n, ...]. It is submitted at once; a full lane makes
        the call wait for room, or with wait_for_room=False raise Overloaded. A token is a Python
        number where its shape is (), else an array. A loop that is slow holds nothing up: it gets
        later what was made meanwhile, `next_tokens` all of it as one array.

        The stream has `tokens`, all that were made so far, and at the end `finish_reason`, "stop"
        or "length". An error comes when the tokens before it were given, as of `infer`:
        DeadlineExceeded where timeout_s, or the model's request_timeout_s, was not enough,
        WorkerLost where no other worker could go on with it. Leaving the loop, `close` and
        dropping the stream take the sequence back, so that its place is free for others.
        """
        call = StreamCall(
            named_inputs(inputs, tensors), parameters, None, timeout_s, priority,
            wait_for_room=wait_for_room,
        )  # fmt: skip
        return TokenStream(self._driver, run_blocking(open_stream(self._driver, model, call)))

    def models(self) -> dict[str, ServedModel]:
        """The pool's models by name, with their tensors and limits."""
        return self._driver.models()

    def __repr__(self) -> str:
        return f"<batchpool.Client of {self.socket}, {self._driver.state}>"

    def close(self) -> None:
        """End the session. Futures under way fail with PoolStopped; results stay valid."""
        if self._driver.is_ours:
            self._driver.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
