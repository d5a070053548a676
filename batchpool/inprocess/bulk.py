"""bp.batch_inference: many inputs that are there already, or come from a generator."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from batchpool.inprocess.arguments import at_least_one, check_callable
from batchpool.inprocess.function import ModelFn, kind_of, run_now
from batchpool.inprocess.refusals import outputs_of_each
from batchpool.inprocess.stacking import stacking


def batch_inference(
    model_fn: ModelFn, inputs: Iterable[Any], batch_size: int = 32, *, stack: bool = True
) -> list[Any]:
    """Run any number of inputs through `model_fn` in batches; returns the outputs in order.

    model_fn gets lists of at most batch_size inputs and returns one output for each; if
    `inputs` is an array (numpy, torch, or anything else with shape, dtype and slices) it gets
    slices [k, ...] of that instead: views, no copies. Of a list of arrays of one shape and dtype,
    of numpy or of torch, it gets arrays [k, ...] too, unless stack is False. Other iterables are
    read a batch at a time, and only the batch that runs is held, so a generator may be longer than
    memory.

    An input that model_fn refuses, by bp.InvalidInput in the output's place or raised, has that
    exception for its output; raised for several inputs, they run again in parts until the refused
    one is alone. Whatever else model_fn raises comes out, with a note that says which inputs it
    was; bp.ModelError if it did not return one output for each. TypeError or ValueError for
    arguments that cannot work: text, bytes, and what has keys (dicts, data frames) are no inputs.
    """
    check_callable("model_fn", model_fn)
    size = at_least_one("batch_size", batch_size)
    model_fn = stacking(model_fn) if stack else model_fn
    outputs: list[Any] = []
    for batch in _cut(inputs, size):
        first, n = len(outputs), len(batch)
        try:
            outputs += outputs_of_each(partial(run_now, model_fn), batch)
        except Exception as exc:
            exc.add_note(f"in batchpool.batch_inference, inputs {first} to {first + n - 1}")
            raise
        del batch  # before the next one is read
    return outputs


def _cut(inputs: Iterable[Any], size: int) -> Iterator[Any]:
    """The inputs in order, `size` at a time; slices of an array, else lists."""
    if isinstance(inputs, (str, bytes, bytearray)) or hasattr(inputs, "keys"):
        raise TypeError(f"inputs must be an iterable of inputs or an array, not {kind_of(inputs)}")
    array: Any = inputs
    if hasattr(inputs, "shape") and hasattr(inputs, "dtype") and len(array.shape) > 0:
        return (array[at : at + size] for at in range(0, len(array), size))
    try:
        each = iter(inputs)
    except TypeError:
        raise TypeError(
            f"inputs must be an iterable of inputs or an array, not {kind_of(inputs)}"
        ) from None
    return iter(lambda: list(itertools.islice(each, size)), [])
