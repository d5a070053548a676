"""A picture decoded alone, with as much memory as it takes."""

from __future__ import annotations

from typing import Any

from batchpool.models.decoding_memory import DecodingMemory
from batchpool.models.pictures import use_picture


def picture_of(raw: bytes, max_pixels: int) -> Any:
    memory = DecodingMemory(1)

    def keep(picture: Any) -> Any:
        assert memory.held_bytes >= 4 * picture.width * picture.height
        return picture

    found = use_picture(raw, max_pixels, memory, keep)
    assert memory.held_bytes == 0
    return found
