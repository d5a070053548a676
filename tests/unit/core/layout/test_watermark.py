"""A watermark that changes while slots are claimed."""

from __future__ import annotations

from batchpool.core.layout.admission import SlotAllocator


def test_another_watermark_counts_from_then_on_and_takes_nothing_away() -> None:
    slots = SlotAllocator(100, 0.9)
    held = list(slots.take(80, 7))
    slots.set_watermark(0.5)
    assert (slots.bound, slots.share) == (50, 25)
    refusal = slots.refusal(1)
    assert refusal is not None
    assert (refusal.held, refusal.over) == (80, 31)
    slots.give_back_many(held, 7)
    assert slots.refusal(50) is None
    assert slots.refusal(51) is not None
