"""The batch sizes that an engine accepts, where it does not accept any up to its maximum.

`sizes` is rising; () stands for every size.
"""

from __future__ import annotations

from collections.abc import Sequence


def doubling_sizes(least: int, most: int) -> tuple[int, ...]:
    """`least` and its doubles as far as they are below `most`, and `most`."""
    doubles = [least << k for k in range(most.bit_length()) if least << k < most]
    return (*doubles, most)


def padded_size(sizes: Sequence[int], n: int) -> int:
    """The smallest accepted size that holds n rows; n itself where every size is accepted."""
    for size in sizes:
        if size >= n:
            return size
    return n


def smaller_size(sizes: Sequence[int], n: int) -> int:
    """The size to try after a batch of n rows did not fit into memory; 0 if there is none.

    That is half of n where every size is accepted, else the next smaller accepted one.
    """
    if not sizes:
        return n // 2
    padded = padded_size(sizes, n)
    return max((size for size in sizes if size < padded), default=0)
