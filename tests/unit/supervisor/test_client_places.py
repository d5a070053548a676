"""Quotas and kept places: nobody can take all of them, and operators always get one."""

from __future__ import annotations

import pytest

from batchpool.supervisor.client_places import ClientPlaces, overdue_at_ns

OWN, ROOT, ANN, BOB = 990, 0, 1001, 1002
PLACES = ClientPlaces(OWN, 32)


def attached_by(uids: list[int], places: ClientPlaces = PLACES) -> dict[int, int]:
    """Places that each user gets who asks in this order, again and again."""
    attached: list[int] = []
    for uid in uids * places.max_clients * 2:
        if not places.why_not_attach(uid, attached):
            attached.append(uid)
    return {uid: attached.count(uid) for uid in uids}


@pytest.mark.parametrize(
    ("uids", "got"),
    [
        ([ANN], {ANN: 24}),
        ([OWN], {OWN: 32}),
        ([ROOT], {ROOT: 32}),
        ([ANN, BOB], {ANN: 14, BOB: 14}),
        ([ANN, BOB, OWN], {ANN: 10, BOB: 9, OWN: 13}),
    ],
)
def test_a_user_gets_a_share_of_the_places_and_operators_what_is_left(
    uids: list[int], got: dict[int, int]
) -> None:
    assert attached_by(uids) == got


def test_the_last_places_are_kept_for_root_and_the_pools_user() -> None:
    attached = [ANN] * 14 + [BOB] * 14
    assert PLACES.why_not_attach(1003, attached) == (
        "28 local clients are attached; the last 4 of max_clients = 32 are kept for root and the"
        " pool's user"
    )
    assert [PLACES.why_not_attach(uid, attached) for uid in (ROOT, OWN)] == ["", ""]
    assert PLACES.why_not_attach(ANN, [ANN] * 24) == (
        "24 local clients of uid 1001 are attached, and one user may have 24 of max_clients = 32"
    )


@pytest.mark.parametrize(("most", "got"), [(0, 0), (1, 1), (2, 1), (4, 3), (8, 6)])
def test_small_pools_admit_a_stranger_too(most: int, got: int) -> None:
    assert attached_by([ANN], ClientPlaces(OWN, most)) == {ANN: got}


def test_connections_that_never_attach_leave_some_for_operators() -> None:
    for uids, most in (([ANN], 16), ([ANN, BOB, 1003, 1004, 1005], 48), ([OWN], 64)):
        open_now: list[int] = []
        for uid in uids * 100:
            if not PLACES.why_not_connect(uid, open_now):
                open_now.append(uid)
        assert len(open_now) == most
        assert (PLACES.why_not_connect(ROOT, open_now) == "") == (most < 64)
    assert "16 connections of uid 1001 are open" in PLACES.why_not_connect(ANN, [ANN] * 16)
    assert "kept for root" in PLACES.why_not_connect(ANN, [BOB] * 16 + [1003] * 32)


def test_a_connection_has_five_seconds_to_speak_and_then_a_minute() -> None:
    assert overdue_at_ns(7, 0) == 5_000_000_007
    assert overdue_at_ns(7, 10) == 60_000_000_010
