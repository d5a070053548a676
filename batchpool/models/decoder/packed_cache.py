"""Keys and values of running sequences for calls whose tokens stand in a single row, as a cache of
transformers.

Layout of the keys of one layer, and of its values; L is the length of a slot in tokens:

    [(slots + 1) * L, heads, head size]

Position p of the sequence in slot s stands at place s * L + p. The last slot takes what padding
writes and belongs to nobody. A position is written before a query may look at it, so slots are not
cleared between sequences: attention reads as many keys of a slot as its sequence has.

The model writes by `update`, as into any cache. `aim` says beforehand where that goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache

from batchpool.models.decoder.slot_cache import LayerShape


class PackedCache(Cache):
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
        places = (slots + 1) * length
        self._keys, self._values = (
            [torch.zeros((places, *shape), dtype=dtype, device=device) for shape in shapes]
            for shapes in ([x.key for x in layers], [x.value for x in layers])
        )
        self._into = torch.zeros(0, dtype=torch.int64, device=device)

    def aim(self, into: torch.Tensor) -> None:
        """Say where the next call writes. into: [tokens] int64, the place of each token."""
        self._into = into

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [1, heads, tokens, head size]; returns all keys and values of the layer, [places,
        heads, head size]."""
        return (
            self._keys[layer_idx].index_copy_(0, self._into, key_states[0].transpose(0, 1)),
            self._values[layer_idx].index_copy_(0, self._into, value_states[0].transpose(0, 1)),
        )

    def clear(self, slot: int) -> None:
        """Overwrite a slot whose numbers may be infinite or none."""
        for kept in (*self._keys, *self._values):
            kept[slot * self.length : (slot + 1) * self.length].zero_()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0, because each token has a position of its own, which its position ids say."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """The positions that a mask would have, and the first of them."""
        return self.length, 0
