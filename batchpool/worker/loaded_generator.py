"""A generator that is loaded on its device and warm."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchpool.core.errors import ModelError
from batchpool.core.tensors.arrays import as_rows
from batchpool.core.tensors.spec import ModelSpec
from batchpool.generator import MAX_TOKENS, Generator, JoiningSequence
from batchpool.model import make_instance, spec_of
from batchpool.worker.backends.select import prepare_process
from batchpool.worker.generator_calls import GeneratorCalls
from batchpool.worker.load import check_declaration, load_class
from batchpool.worker.loaded_model import Unload
from batchpool.worker.options import converted_options
from batchpool.worker.step_result import StepChecker
from batchpool.worker.warm_up import BatchTime

_TIMES = 2  # the first run pays for what is done once
_TOKENS = 2  # so that a step follows the one that ends the prompt
_STEPS_MOST = 1000  # without a token, beside one for each element of the prompt
_NOTE = "it was the warm-up, whose prompt is what warm_up_prompt gives"


@dataclass(frozen=True)
class LoadedGenerator:
    """A generator as its worker runs it. slowest: of the steps of the warm-up, in its last run.
    run_warm_up: raises what the generator raises."""

    generator: Generator
    slowest: BatchTime
    run_warm_up: Callable[[], None]


def load_generator(
    spec: ModelSpec,
    import_name: str,
    device: str,
    max_batch: int,
    options: Mapping[str, Any] | None = None,
    loaded: Callable[[Unload], None] = lambda unload: None,
) -> LoadedGenerator:
    """Import, load and warm up a generator; its exceptions are the caller's.

    spec: as it was declared before. max_batch: the most sequences at once, of which `load` may take
    fewer. options: arguments of its `__init__`. loaded: called between the load and the warm-up,
    with what undoes that load. Raises ModelError where what it declares or returns is wrong.
    """
    prepare_process(spec, device)
    cls = load_class(import_name)
    generator = make_instance(cls, spec.name, converted_options(cls, options or {}))
    check_declaration(spec, spec_of(generator))
    assert isinstance(generator, Generator), "its declaration says so"
    generator.sequences = max_batch
    generator.load(device)
    loaded(generator.unload)
    _check_limits(generator, spec.name, max_batch)
    warm_up = _WarmUp(generator, spec)
    try:
        slowest_s = [warm_up.run() for _ in range(_TIMES)][-1]
    except Exception as exc:
        exc.add_note(_NOTE)
        raise
    return LoadedGenerator(generator, BatchTime(1, slowest_s), lambda: _discard(warm_up.run()))


def _discard(seconds: float) -> None:
    """The time is of no interest."""


def _check_limits(generator: Generator, name: str, max_batch: int) -> None:
    """Raise ModelError where `load` has set what cannot be."""
    sequences, kv_tokens = generator.sequences, generator.kv_tokens
    if type(sequences) is not int or not 1 <= sequences <= max_batch:
        raise ModelError(
            f"load of generator {name!r} set sequences to {sequences!r}; a whole number from 1 to"
            f" max_batch = {max_batch} was expected"
        )
    if type(kv_tokens) is not int or kv_tokens < 0:
        raise ModelError(
            f"load of generator {name!r} set kv_tokens to {kv_tokens!r}; a whole number of tokens"
            " was expected, or 0 for any number"
        )


class _WarmUp:
    """One sequence, which joins, makes tokens and leaves."""

    def __init__(self, generator: Generator, spec: ModelSpec) -> None:
        self._calls = GeneratorCalls(generator)
        self._checker = StepChecker(spec.name, generator.token, generator.sequences)
        self._name = spec.name
        prompt = as_rows(spec.inputs[0], np.asarray(generator.warm_up_prompt())[np.newaxis])[0]
        most = min(_TOKENS, spec.outputs[0].max_shape[0])
        self._steps_most = _STEPS_MOST + len(prompt)
        parameters = {}
        for tensor in spec.parameters:
            value = tensor.default
            if value is None:
                value = b"warm up"[: tensor.max_bytes] if tensor.is_bytes else 0
            parameters[tensor.name] = value
        parameters[MAX_TOKENS] = most
        none = np.empty((0, *generator.token.max_shape), dtype=generator.token.np_dtype)
        self._sequence = JoiningSequence(0, prompt, none, most, parameters)
        self._active = np.zeros(generator.sequences, dtype=np.bool_)
        self._active[0] = True

    def run(self) -> float:
        """Run it; returns the seconds of the slowest call."""
        begun_s = time.monotonic()
        refused = self._checker.check_join(self._calls.join([self._sequence]), frozenset({0}))
        slowest_s = time.monotonic() - begun_s
        if refused:
            raise refused[0]
        made = quiet = 0
        while made < self._sequence.max_tokens:
            begun_s = time.monotonic()
            step = self._checker.check_step(self._calls.step(), self._active)
            slowest_s = max(slowest_s, time.monotonic() - begun_s)
            quiet = 0 if len(step.tokens) else quiet + 1
            made += len(step.tokens)
            if len(step.stopped):
                break
            if quiet > self._steps_most:
                raise ModelError(
                    f"generator {self._name!r} made no token in {quiet} steps; a step is to make"
                    " some for each sequence whose prompt it has read"
                )
        self._calls.leave([0])
        return slowest_s
