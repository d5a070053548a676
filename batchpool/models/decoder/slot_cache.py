"""Keys and values of running sequences, each in a slot of its own, as a cache of transformers.

Layout of the keys of one layer, and of its values; L is the length of a slot in tokens:

    [slots + 1, heads, L, head size]

Position p of the sequence in slot s stands in [s, :, p]. The last slot, number `slots`, takes what
padding writes and belongs to nobody. A position is written before a query may look at it, so slots
are not cleared between sequences: the mask hides what is left of the one before. It cannot hide
what is no number, since 0 times infinity is none either; for that there is `clear`.

The model writes by `update`, as into any cache. `aim` says beforehand where that goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache


@dataclass(frozen=True)
class LayerShape:
    """Heads and head size of the keys and of the values of one layer."""

    key: tuple[int, int]
    value: tuple[int, int]

    @property
    def numbers(self) -> int:
        """The numbers that the layer keeps for a token."""
        return self.key[0] * self.key[1] + self.value[0] * self.value[1]


def slot_bytes(layers: Sequence[LayerShape], length: int, dtype: torch.dtype) -> int:
    """The memory of one slot."""
    return sum(layer.numbers for layer in layers) * length * dtype.itemsize


class SlotCache(Cache):
    """The cache of `slots` sequences of at most `length` tokens."""

    def __init__(
        self,
        layers: Sequence[LayerShape],
        slots: int,
        length: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(layers=[])
        self.slots, self.length, self.dtype = slots, length, dtype
        self._keys, self._values = (
            [torch.zeros((slots + 1, heads, length, size), dtype=dtype, device=device)
             for heads, size in shapes]
            for shapes in ([x.key for x in layers], [x.value for x in layers])
        )  # fmt: skip
        nowhere = torch.zeros((0, 0), dtype=torch.int64, device=device)
        self._into, self._positions = nowhere, nowhere
        self._rows: torch.Tensor | None = None
        self._seen = length

    def aim(
        self, into: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor | None, seen: int
    ) -> None:
        """Say where the next call writes and reads.

        into, positions: [rows, tokens] int64, slot and position of each token. rows: [rows] int64,
        the slots that the rows read, or None for the first slots, which are read without a copy.
        seen: how many positions of a slot are read.
        """
        self._into, self._positions, self._rows, self._seen = into, positions, rows, seen

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [rows, heads, tokens, head size]; returns what the rows read, [rows, heads, seen,
        head size]."""
        return (
            self._written(self._keys[layer_idx], key_states),
            self._written(self._values[layer_idx], value_states),
        )

    def _written(self, kept: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        kept[self._into, :, self._positions] = states.transpose(1, 2)
        seen = kept[:, :, : self._seen]
        if self._rows is None:
            return seen[: states.shape[0]]
        return seen.index_select(0, self._rows)

    def clear(self, slot: int) -> None:
        """Overwrite a slot whose numbers may be infinite or none."""
        for kept in (*self._keys, *self._values):
            kept[slot].zero_()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0, because each row has a position of its own, which its position ids say."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """The positions that a mask has, and the first of them."""
        return self._seen, 0
