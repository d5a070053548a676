"""bp.InferenceBatcher: single inputs in, batches through a function, single outputs out."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from batchpool.client.process_id import this_process
from batchpool.core.errors import InvalidInput
from batchpool.core.scheduler.decide import Limits
from batchpool.inprocess.arguments import at_least_one, check_callable, wait_ns
from batchpool.inprocess.driver import ClockNs, Driver
from batchpool.inprocess.function import ModelFn, is_async, outputs_of, run, run_now
from batchpool.inprocess.queue import RequestQueue
from batchpool.inprocess.refusals import outputs_of_each
from batchpool.inprocess.stacking import stacking


class InferenceBatcher:
    """Collects single inputs and runs `model_fn` on batches of them, wait-or-full.

    model_fn        [input, ...] -> one output for each, in order: a list, tuple or array. Inputs
                    that are arrays of one shape and dtype, of numpy or of torch, come as one array
                    [n, ...]. May be a coroutine function if only `predict` is used
    max_batch_size  most inputs of one batch, at least 1
    max_wait_ms     longest wait of an input for company, at least 0; fractions are fine
    stack           False: model_fn gets a list of arrays too
    clock_ns        the time in nanoseconds; only differences count

    There are two ways to use it, each with a queue of its own, so that one object may be used
    both ways and neither takes the other's requests:

    by hand     `add_request`, `should_process`, `process_batch`, from any threads. model_fn is
                called by the thread that called `process_batch`; two threads may run different
                batches at the same time.
    awaited     `await predict(input)`, from any running loops. The requests of one loop ride
                together. An ordinary model_fn runs in one thread that belongs to the batcher,
                a batch at a time, so the loop goes on; an async one is awaited on the loop.

    model_fn refuses an input by bp.InvalidInput in the output's place; the others get their
    outputs. It may also raise it: for several inputs they run again in parts until the refused one
    is alone. When model_fn raises anything else, or does not return one output for each input
    (bp.ModelError), all requests of that batch are affected and no others; the methods say how.
    TypeError or ValueError for arguments that cannot work.
    """

    def __init__(
        self,
        model_fn: ModelFn,
        max_batch_size: int = 32,
        max_wait_ms: float = 50,
        *,
        stack: bool = True,
        clock_ns: ClockNs = time.monotonic_ns,
    ) -> None:
        check_callable("model_fn", model_fn)
        check_callable("clock_ns", clock_ns)
        # depth 1: a full batch does not queue behind the one that runs, where requests whose
        # callers left could not be taken out of it any more.
        self._limits = Limits(
            at_least_one("max_batch_size", max_batch_size), wait_ns(max_wait_ms), depth=1
        )
        self._model_fn = stacking(model_fn) if stack else model_fn
        self._clock_ns: ClockNs = lambda: int(clock_ns())  # of whatever kind it is
        self._is_async = is_async(model_fn)
        self._lock = threading.Lock()  # never held while model_fn runs
        self._line: RequestQueue[Any] = RequestQueue(
            self._limits
        )  # by hand; the owner is the request id
        self._drivers: dict[asyncio.AbstractEventLoop, Driver] = {}
        self._executor: tuple[int, ThreadPoolExecutor] | None = None  # with its process

    def add_request(self, input_data: Any, request_id: Any) -> None:
        """Queue one input. The id is any object; it comes back untouched with the output.

        Ids need not differ: two requests with one id are two requests with an answer each.
        """
        with self._lock:
            self._line.add(self._clock_ns(), input_data, request_id)

    def should_process(self) -> bool:
        """True if a full batch is there, or the oldest request was added max_wait_ms ago."""
        with self._lock:
            return bool(self._line.decide(self._clock_ns(), in_flight=0).dispatch)

    def process_batch(self) -> list[dict[str, Any]]:
        """Run the oldest requests now, at most max_batch_size, due or not.

        Returns [{"id": request_id, "output": output}, ...], first in, first out; [] when nothing
        is queued. A refused input has "error": its bp.InvalidInput, and no "output". Whatever else
        model_fn raises comes out; bp.ModelError if it did not return one output
        for each input. Then nothing is lost: the requests of the batch are back at the front of
        the queue, in their places, and the next call runs them again. Where that cannot help,
        `drop_failed` takes them out.
        """
        with self._lock:
            dispatch = self._line.decide(self._clock_ns(), in_flight=0, draining=True).dispatch
            if not dispatch:
                return []
            taken = self._line.take(dispatch[0].rows)
        try:
            outputs = outputs_of_each(partial(run_now, self._model_fn), taken.inputs())
        except BaseException:
            with self._lock:
                self._line.put_back(taken)
            raise
        return [
            {"id": request_id, "error" if isinstance(output, InvalidInput) else "output": output}
            for (_, request_id), output in zip(taken.requests, outputs, strict=True)
        ]

    def drop_failed(self) -> list[dict[str, Any]]:
        """Take the requests whose batch failed out of the queue, without running them again.

        Returns [{"id": request_id, "input": input_data}, ...], first in, first out. Those that
        were in no failed batch stay.
        """
        with self._lock:
            taken = self._line.take_failed()
        return [{"id": request_id, "input": given} for given, request_id in taken.requests]

    async def predict(self, input_data: Any) -> Any:
        """The output for one input, which rides with those of other calls on the running loop.

        A batch leaves when it is full, or when its oldest input has waited max_wait_ms; while
        model_fn still runs one, the next forms behind it. Raises bp.InvalidInput if model_fn
        refused this input, whatever else it raised for the batch; bp.ModelError if it did not
        return one output for each input. Cancelling drops this input only: it is not run unless
        its batch has left already, and the others get their outputs.
        """
        return await self._driver().predict(input_data)

    def _driver(self) -> Driver:
        loop = asyncio.get_running_loop()
        driver = self._drivers.get(loop)
        if driver is None:
            driver = Driver(loop, self._limits, self._clock_ns, self._answer, self._rest)
            with self._lock:
                # A loop that was closed in the middle of its calls left its driver behind.
                for closed in [other for other in self._drivers if other.is_closed()]:
                    del self._drivers[closed]
                self._drivers[loop] = driver
        return driver

    def _rest(self, driver: Driver) -> None:
        """Nothing is left to do on its loop; the next call there starts anew."""
        with self._lock:
            self._drivers.pop(driver.loop, None)

    async def _answer(self, inputs: list[Any]) -> list[Any]:
        """The outputs of one batch. The running loop goes on meanwhile."""
        n = len(inputs)
        if self._is_async:
            return outputs_of(await self._model_fn(inputs), n)
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self._one_thread(), run, self._model_fn, inputs)
        if inspect.isawaitable(answer):
            return outputs_of(await answer, n)
        outputs: list[Any] = answer
        return outputs

    def _one_thread(self) -> ThreadPoolExecutor:
        """A thread of our own: the loop's default ones may all wait for us, and frameworks keep
        state for each thread. The child of a fork has lost it and gets another."""
        here = this_process()
        with self._lock:
            if self._executor is None or self._executor[0] != here:
                self._executor = here, ThreadPoolExecutor(1, thread_name_prefix="batchpool-predict")
            return self._executor[1]
