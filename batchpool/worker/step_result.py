"""Checks of what a generator's `step` and `join` return, before any of it reaches a lane."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from batchpool.core.errors import InvalidRequest, ModelError
from batchpool.core.tensors.arrays import from_lists, has_dtype, in_storage
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.numbers import from_array
from batchpool.core.tensors.spec import Tensor

I64 = npt.NDArray[np.int64]
_NONE: I64 = np.empty(0, dtype=np.int64)
_FIELDS = ("numbers", "tokens", "counts", "stopped", "out_of_room")


@dataclass(frozen=True)
class CheckedStep:
    """The tokens of one step. numbers: [k], each once.  tokens: [sum of counts, *token shape] in
    storage dtype.  counts: [k], None for one each.  stopped, out_of_room: [s], of running
    sequences, none of them in both."""

    numbers: I64
    tokens: Array
    counts: I64 | None
    stopped: I64
    out_of_room: I64


class StepChecker:
    """Checks the results of a generator. token: as the generator declares it.  n: so many numbers
    of sequences there are."""

    def __init__(self, model: str, token: Tensor, n: int) -> None:
        self._model = model
        self._token = token
        self._mark = np.empty(n, dtype=np.int64)
        self._row = token.max_shape

    def check_step(self, found: Any, active: npt.NDArray[np.bool_]) -> CheckedStep:
        """The result of `step`. active: a mask [n] of the sequences that run. Raises ModelError
        that names what is wrong."""
        if not all(hasattr(found, name) for name in _FIELDS):
            raise self._wrong("step", f"returned a {type(found).__name__}", "a bp.StepTokens")
        numbers = self._numbers("numbers", found.numbers, active)
        stopped = self._some("stopped", found.stopped, active)
        out_of_room = self._some("out_of_room", found.out_of_room, active)
        if len(stopped) and len(out_of_room):
            out_of_room = out_of_room[~np.isin(out_of_room, stopped)]
        counts = None if found.counts is None else self._counts(found.counts, len(numbers))
        n = len(numbers) if counts is None else int(counts.sum())
        tokens = self._tokens(found.tokens, n)
        return CheckedStep(numbers, tokens, counts, stopped, out_of_room)

    def check_join(self, found: Any, joining: frozenset[int]) -> dict[int, Exception]:
        """The result of `join`: the sequences of these that the generator refuses, with the
        errors."""
        if found is None:
            return {}
        if not isinstance(found, Mapping):
            what = f"returned a {type(found).__name__}"
            raise self._wrong("join", what, "None or {number of a sequence: error}")
        refused: dict[int, Exception] = {}
        for number, error in dict(found).items():
            # 0.0 and False are equal to 0, but are no index.
            is_number = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
            if not is_number or number not in joining or not isinstance(error, Exception):
                what = f"returned {number!r}: {error!r}"
                expected = (
                    f"the number of a sequence that joins, of {sorted(joining)}, with an error"
                )
                raise self._wrong("join", what, expected)
            refused[int(number)] = error
        return refused

    def _some(self, field: str, value: Any, active: npt.NDArray[np.bool_]) -> I64:
        """Numbers, of which there are mostly none."""
        if isinstance(value, tuple) and not value:
            return _NONE
        return self._numbers(field, value, active)

    def _numbers(self, field: str, value: Any, active: npt.NDArray[np.bool_]) -> I64:
        numbers = self._integers(field, value)
        if not len(numbers):
            return numbers
        out_of_range = (numbers < 0) | (numbers >= len(active))
        unknown = out_of_range if out_of_range.any() else ~active[numbers]
        if unknown.any():
            first = int(numbers[np.argmax(unknown)])
            what = f"returned {field} with {first}, which is no running sequence"
            raise self._wrong("step", what, "numbers of sequences that have joined and not left")
        order = np.arange(len(numbers))
        self._mark[numbers] = order
        if (self._mark[numbers] != order).any():
            twice = int(numbers[np.argmax(self._mark[numbers] != order)])
            raise self._wrong("step", f"returned {field} with {twice} twice", "each number once")
        return numbers

    def _counts(self, value: Any, k: int) -> I64:
        counts = self._integers("counts", value)
        if len(counts) != k:
            raise self._wrong(
                "step", f"returned {len(counts)} counts", f"one for each of {k} numbers"
            )
        if k and int(counts.min()) < 1:
            what = f"returned a count of {int(counts.min())}"
            raise self._wrong("step", what, "1 or more tokens for each of the numbers")
        return counts

    def _integers(self, field: str, value: Any) -> I64:
        found = np.asarray(_on_host(value))
        if found.ndim != 1 or (found.dtype.kind not in "iu" and found.size):
            what = f"returned {field} of shape {list(found.shape)} and dtype {found.dtype.name}"
            raise self._wrong("step", what, "whole numbers in one dimension")
        return found.astype(np.int64, copy=False)

    def _tokens(self, value: Any, n: int) -> Array:
        token = self._token
        try:
            if isinstance(value, (list, tuple)):
                array = from_lists(token, list(value), "output") if value else self._no_tokens()
            else:
                array = in_storage(token, _on_host(value))
                if not has_dtype(token, array):
                    array = from_array(token.name, token.element, array, "output")
        except InvalidRequest as exc:
            raise ModelError(f"step of generator {self._model!r}: {exc.message}") from None
        if array.shape != (n, *self._row):
            what = f"returned tokens of shape {list(array.shape)}"
            raise self._wrong("step", what, str([n, *self._row]))
        return array

    def _no_tokens(self) -> Array:
        return np.empty((0, *self._row), dtype=self._token.np_dtype)

    def _wrong(self, method: str, what: str, expected: str) -> ModelError:
        return ModelError(f"{method} of generator {self._model!r} {what}; {expected} was expected")


def _on_host(value: Any) -> Any:
    """A torch tensor of a device as one of the host; anything else unchanged."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().cpu()
    return value
