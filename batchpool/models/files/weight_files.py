"""Files of weights, as far as it can be told without loading them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from batchpool.models.files.json_files import check_no_lfs_pointer

_HEAD_BYTES_MOST = 100_000_000  # the limit of the format


def check_safetensors(path: Path) -> None:
    """Raise ValueError for a file that is no safetensors or lacks a part, as after a download that
    broke off.

    A file begins with the length of its head as a u64, and the head says where each tensor lies
    behind it (https://github.com/huggingface/safetensors#format).
    """
    check_no_lfs_pointer(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(8)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
        head = file.read(length) if 0 < length <= _HEAD_BYTES_MOST else b""
    try:
        tensors = json.loads(head)
        ends = [each["data_offsets"][1] for name, each in tensors.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise ValueError(
            f"{path.absolute()}, of {size} bytes, is no whole file of safetensors: the head of one"
            " was expected at its beginning"
        ) from None
    if size < expected:
        raise ValueError(
            f"{path.absolute()} has {size} bytes, and {expected} by its head: a part is missing;"
            " copy or download it again"
        )
