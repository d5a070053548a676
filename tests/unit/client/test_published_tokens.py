"""Tokens read in the slot of a running row, and found by one look at all slots."""

from __future__ import annotations

import numpy as np

from batchpool.client.published_tokens import PublishedTokens, lengths_of
from batchpool.client.streaming_slots import StreamingSlots
from tests.unit.lanes import new_lane, other_side
from tests.unit.specs import STORY
from tests.unit.stories import StoryWriter


def test_new_tokens_are_given_once_and_all_stay() -> None:
    lane = new_lane(STORY, 4)
    writer, tokens = StoryWriter(other_side(lane)), PublishedTokens(lane, 2)
    assert tokens.new() is None
    writer.append(2, 5)
    writer.append(2, 6, 7)
    writer.append(1, 9)
    new = tokens.new()
    assert new is not None
    assert (new.tolist(), new.dtype, tokens.taken) == ([5, 6, 7], np.int32, 3)
    assert tokens.new() is None
    writer.append(2, 8)
    assert tokens.all().tolist() == [5, 6, 7, 8]
    last = tokens.new()
    assert last is not None
    assert last.tolist() == [8]
    writer.append(2, 1)
    assert (new.tolist(), last.tolist()) == ([5, 6, 7], [8]), "copies"


def test_tokens_of_the_row_before_are_not_read() -> None:
    lane = new_lane(STORY, 4)
    StoryWriter(other_side(lane)).append(2, 5, 6)
    tokens = PublishedTokens(lane, 2)
    assert (tokens.length, tokens.new()) == (0, None)


def test_a_number_that_cannot_be_is_cut_to_the_column_and_never_falls() -> None:
    lane = new_lane(STORY, 4)
    tokens = PublishedTokens(lane, 0)
    lengths_of(lane)[0] = 2**32 - 1
    new = tokens.new()
    assert new is not None
    assert len(new) == 8
    lengths_of(lane)[0] = 3
    assert (tokens.length, tokens.new()) == (8, None)


def test_what_is_left_is_kept_when_the_slot_is_another_rows() -> None:
    lane = new_lane(STORY, 4)
    writer, tokens = StoryWriter(other_side(lane)), PublishedTokens(lane, 0)
    writer.append(0, 5, 6)
    writer.end(0, b"length")
    assert tokens.finish_reason() == "length"
    tokens.leave()
    writer.admit([0])
    writer.append(0, 1, 2, 3)
    new = tokens.new()
    assert new is not None
    assert (new.tolist(), tokens.all().tolist(), tokens.length) == ([5, 6], [5, 6], 2)
    tokens.leave()
    assert tokens.all().tolist() == [5, 6]


def test_only_rows_that_grew_and_are_watched_are_told() -> None:
    lane = new_lane(STORY, 4)
    writer, slots, told = StoryWriter(other_side(lane)), StreamingSlots(lane), list[int]()
    for slot in (0, 2):
        slots.add(slot, lambda slot=slot: told.append(slot))  # type: ignore[misc]
    slots.look()
    assert told == []
    writer.append(1, 1)
    writer.append(2, 1, 2)
    slots.look()
    slots.look()
    assert told == [2]
    writer.append(0, 1)
    writer.append(2, 3)
    slots.look()
    assert told == [2, 0, 2]
    slots.remove(2)
    writer.append(2, 4)
    slots.look()
    assert (told, len(slots)) == ([2, 0, 2], 1)
