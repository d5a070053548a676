"""Shares of the store's bytes: one origin leaves room, and newcomers find some."""

from __future__ import annotations

from batchpool.tasks.byte_shares import ByteShares, most_of_one


def filled(shares: ByteShares, origin: str, limit: int, share: float) -> int:
    """The bytes that an origin gets which takes one after another, and keeps them."""
    kept = sum(shares.of(name) for name in ("a", "b", "c"))
    while kept < limit and shares.has_room(origin, 1, kept, limit, share):
        shares.add(origin, 1)
        kept += 1
    return shares.of(origin)


def test_each_newcomer_gets_its_part_of_what_the_others_leave() -> None:
    shares = ByteShares()
    assert [filled(shares, origin, 1000, 0.75) for origin in "abc"] == [750, 187, 47]
    assert shares.largest() == "a"
    assert most_of_one(1000, 750, 0.75) == 187


def test_a_share_of_one_is_no_share() -> None:
    assert filled(ByteShares(), "a", 1000, 1.0) == 1000


def test_an_origin_without_bytes_may_have_one_task_of_any_size() -> None:
    shares = ByteShares()
    assert shares.has_room("a", 10**6, 0, 1000, 0.5)
    shares.add("a", 10**6)
    assert not shares.has_room("a", 1, 10**6, 1000, 0.5)
    assert shares.has_room("b", 600, 100, 1000, 0.5)


def test_who_gave_its_bytes_back_is_forgotten() -> None:
    shares = ByteShares()
    shares.add("a", 5)
    shares.add("a", -5)
    assert (shares.of("a"), shares.largest()) == (0, "")
