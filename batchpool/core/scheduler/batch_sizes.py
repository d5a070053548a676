"""The batch sizes that an engine accepts, where it does not accept any up to its maximum.

`sizes` is rising; () stands for every size.
"""

from __future__ import annotations

from collections.abc import Sequence


def padded_size(sizes: Sequence[int], n: int) -> int:
    """The smallest accepted size that holds n rows; n itself where every size is accepted."""
    for size in sizes:
        if size >= n:
            return size
    return n


def smaller_size(sizes: Sequence[int], n: int) -> int:
    """The largest size that costs less than a batch of n rows does; 0 if there is none.

    Where every size is accepted, that is half of n.
    """
    if not sizes:
        return n // 2
    padded = padded_size(sizes, n)
    return max((size for size in sizes if size < padded), default=0)
