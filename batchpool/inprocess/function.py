"""The model as a function: a list of n inputs in, n outputs out, in the same order.

What counts as n outputs: a list, a tuple or any other sequence of length n, or an array (numpy,
torch) with first axis n. The outputs of an array are views [...] of one copy of it, so a model
may return the same buffer every time.

What does not: text, bytes, None, whatever has keys (dicts, data frames), and iterators, which
would run the model's code after the call. All that is ModelError, and so is another number of
outputs: then nobody knows which is whose.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from batchpool.core.errors import ModelError

ModelFn: TypeAlias = Callable[[Any], Any]


def is_async(model_fn: ModelFn) -> bool:
    """True for a coroutine function, or an object that is called like one."""
    call = getattr(type(model_fn), "__call__", None)  # noqa: B004 - not whether, but how
    return inspect.iscoroutinefunction(model_fn) or inspect.iscoroutinefunction(call)


def run(model_fn: ModelFn, inputs: list[Any]) -> Any:
    """Run one batch; its outputs, or what must be awaited for them: model_fn may be a plain
    function around a coroutine function, as decorators make them."""
    n = len(inputs)
    try:
        answer = model_fn(inputs)
    except StopIteration as exc:  # which no future can carry
        raise ModelError("model_fn raised StopIteration") from exc
    return answer if inspect.isawaitable(answer) else outputs_of(answer, n)


def run_now(model_fn: ModelFn, inputs: Any) -> list[Any]:
    """Run one batch, a list or a slice of an array; its outputs."""
    n = len(inputs)  # before model_fn gets the list, which it may change
    return outputs_of(model_fn(inputs), n)


def outputs_of(answer: Any, n: int) -> list[Any]:
    """The result of model_fn for n inputs, as a list of n outputs. Raises ModelError for others."""
    if inspect.iscoroutine(answer):
        answer.close()  # so that nobody is told that it was never awaited
        raise ModelError(
            "model_fn returned a coroutine; an async model_fn works with `await predict(...)` only"
        )
    count = _count(answer)
    if count is None:
        raise ModelError(
            f"model_fn returned {kind_of(answer)} for {n} inputs;"
            " a list, tuple or array with one output for each was expected"
        )
    if count == n:
        if isinstance(answer, np.ndarray):
            answer = answer.copy()
        elif hasattr(answer, "detach"):  # a torch tensor; this file may not import torch
            answer = answer.clone()
        outputs = list(answer)
        count = len(outputs)
        if count == n:
            return outputs
    raise ModelError(
        f"model_fn returned {count} outputs for {n} inputs; it gets all inputs of a batch at once,"
        " as a list unless they are arrays, and returns one output for each"
    )


def kind_of(value: Any) -> str:
    """The type of a wrong value, for the text of an error."""
    return "None" if value is None else f"a {type(value).__name__}"


def _count(answer: Any) -> int | None:
    """The number of outputs it holds; None if it is no container of outputs."""
    if isinstance(answer, (str, bytes, bytearray, memoryview)) or hasattr(answer, "keys"):
        return None
    if not hasattr(answer, "__getitem__"):
        return None
    try:
        return len(answer)
    except TypeError:  # an array without axes
        return None
