"""The tokens that a generator's rows in a lane may need."""

from __future__ import annotations

import numpy as np

from batchpool.core.scheduler.queue import I64
from batchpool.core.tensors.dtypes import Array
from batchpool.generator import MAX_TOKENS
from batchpool.shm.lane import Lane


class Reservations:
    """The token counts of a lane of a generator.

    A row reserves its prompt and all tokens that it may get. Its client may overwrite any of these
    words at any time, so each is read once and bounded by the declaration, and the record of the
    row holds what was read.
    """

    def __init__(self, lane: Lane) -> None:
        spec = lane.spec
        self._most_prompt = spec.inputs[0].max_shape[0]
        self._most_tokens = spec.outputs[0].max_shape[0]
        self._prompt_sizes = lane.input_sizes
        self._wanted = lane.parameters[MAX_TOKENS].values
        self._lengths = lane.memory.array(lane.layout.columns["size.out"])

    def of(self, slots: Array) -> I64:
        """The tokens that the row in each slot reserves, [n]."""
        prompts = self._prompt_sizes[slots][:, 0].astype(np.int64)
        wanted = self._wanted[slots].astype(np.int64)
        reserved: I64 = np.minimum(prompts, self._most_prompt)
        reserved += np.clip(wanted, 1, self._most_tokens)
        return reserved

    def start(self, slots: Array) -> None:
        """Store that these rows, which are SUBMITTED, have no token yet."""
        self._lengths[slots, 0] = 0
