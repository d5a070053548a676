"""Page-locked host memory, which a device copies from and to by itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Tensor


class PinnedBuffer:
    """Memory for up to `most` rows of a numeric tensor, seen as numpy and as torch see it.

    pin: False where there is no device. Zeros at first, later what was last put there.
    """

    def __init__(self, torch: Any, tensor: Tensor, most: int, *, pin: bool) -> None:
        self._torch = torch
        self._tensor = tensor
        nbytes = max(1, tensor.row_bytes * most)
        self._bytes = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=pin)
        self._host: Array = self._bytes.numpy()
        self._dtype = torch.from_numpy(np.empty(0, tensor.np_dtype)).dtype
        self._full = None
        if not tensor.dynamic:  # such views cost 5 us each, a slice of one 0.2 us
            whole = (most, *tensor.max_shape)
            self._full = self._array(whole), self._loose(whole)

    def array(self, shape: tuple[int, ...]) -> Array:
        """The first rows, [n, *row shape], in the tensor's storage dtype."""
        return self._array(shape) if self._full is None else self._full[0][: shape[0]]

    def tensor(self, shape: tuple[int, ...]) -> Any:
        """The same memory as the model's dtype has it."""
        return self._loose(shape) if self._full is None else self._full[1][: shape[0]]

    def _array(self, shape: tuple[int, ...]) -> Array:
        nbytes = math.prod(shape) * self._tensor.np_dtype.itemsize
        array: Array = self._host[:nbytes].view(self._tensor.np_dtype).reshape(shape)
        return array

    def _loose(self, shape: tuple[int, ...]) -> Any:
        nbytes = math.prod(shape) * self._tensor.np_dtype.itemsize
        found = self._bytes[:nbytes].view(self._dtype).reshape(shape)
        is_bfloat16 = self._tensor.dtype == "bfloat16"  # which travels as uint16 bit patterns
        return found.view(self._torch.bfloat16) if is_bfloat16 else found
