"""The calls of a generator's methods, as its framework wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from batchpool.core.errors import ModelError
from batchpool.generator import Generator, JoiningSequence
from batchpool.process.own_process import end_if_forked
from batchpool.worker.backends.backend import describe_error
from batchpool.worker.backends.select import calls_context

_Found = TypeVar("_Found")


class GeneratorCalls:
    """Calls `join`, `step` and `leave`, a torch generator's without gradients.

    Every exception that is not an `Exception` (KeyboardInterrupt, SystemExit) becomes a ModelError,
    so that it fails the sequences and does not end the worker.
    """

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._context = calls_context(generator.framework)

    def join(self, sequences: Sequence[JoiningSequence]) -> Any:
        """The sequences that the generator refuses, {number: error} or None."""
        return self._call(lambda: self._generator.join(sequences))

    def step(self) -> Any:
        """The tokens of one step, unchecked."""
        return self._call(self._generator.step)

    def leave(self, numbers: Sequence[int]) -> None:
        """Let the generator free what these sequences hold."""
        self._call(lambda: self._generator.leave(numbers))

    def _call(self, method: Callable[[], _Found]) -> _Found:
        try:
            with self._context():
                return method()
        except Exception:
            raise
        except BaseException as exc:
            raise ModelError(describe_error(exc)) from exc
        finally:
            end_if_forked()
