"""Origins that had fewest connections of late go first, however many of another one wait."""

from __future__ import annotations

from batchpool.frontend.http import accept_order
from batchpool.frontend.http.accept_order import AcceptOrder


def taken(order: AcceptOrder[str], n: int, now_s: float = 100.0) -> list[str | None]:
    return [order.take(now_s) for _ in range(n)]


def filled(**numbers: int) -> AcceptOrder[str]:
    """Connections of origins, one origin behind the other, each by its origin and its number."""
    order = AcceptOrder[str]()
    for origin, n in numbers.items():
        for number in range(n):
            order.add(origin, f"{origin}{number}")
    return order


def test_one_origin_is_served_in_the_order_of_coming() -> None:
    order = filled(a=3)
    assert len(order) == 3
    assert taken(order, 4) == ["a0", "a1", "a2", None]
    assert len(order) == 0


def test_an_origin_is_alone_while_connections_of_no_other_one_wait() -> None:
    order = filled(a=2)
    assert order.lone_origin() == "a"
    order.add("b", "b0")
    assert order.lone_origin() is None
    assert taken(order, 2) == ["a0", "b0"]
    assert order.lone_origin() == "a"
    taken(order, 1)
    assert order.lone_origin() is None


def test_a_newcomer_waits_for_none_of_a_crowd() -> None:
    order = filled(crowd=300)
    taken(order, 10)
    order.add("new", "its first")
    order.add("new", "its second")
    assert taken(order, 3) == ["its first", "its second", "crowd10"]


def test_a_burst_of_who_seldom_comes_goes_before_crowds() -> None:
    order = filled(a=100, b=100)
    taken(order, 100)
    for number in range(5):
        order.add("few", f"few{number}")
    assert taken(order, 5) == [f"few{number}" for number in range(5)]


def test_crowds_take_turns() -> None:
    order = filled(a=100, b=100, c=100)
    counts = {"a": 0, "b": 0, "c": 0}
    for found in taken(order, 90):
        assert found is not None
        counts[found[0]] += 1
    assert counts == {"a": 30, "b": 30, "c": 30}


def test_an_origin_that_has_been_served_is_behind_one_that_has_not() -> None:
    order = filled(a=1)
    taken(order, 1)
    order.add("a", "a again")
    order.add("b", "b for the first time")
    assert taken(order, 2) == ["b for the first time", "a again"]


def test_what_was_long_ago_counts_less() -> None:
    order = filled(a=20)
    taken(order, 20, now_s=0.0)
    order.add("b", "b")
    taken(order, 1, now_s=60.0)  # 20 of a minute ago are less than this one
    order.add("b", "b again")
    order.add("a", "a again")
    assert taken(order, 2, now_s=60.0) == ["a again", "b again"]


def test_counts_of_years_are_compared() -> None:
    order = filled(a=3, b=1)
    taken(order, 3, now_s=1e9)
    order.add("a", "a again")
    order.add("b", "b again")
    assert taken(order, 2, now_s=1e9) == ["b again", "a2"]


def test_no_more_origins_are_kept_than_that() -> None:
    order = AcceptOrder[str]()
    for number in range(accept_order._KEPT_ORIGINS + 10):
        order.add(f"{number}", "its connection")
        order.take(1.0)
    assert len(order._counts) == accept_order._KEPT_ORIGINS
    assert "0" not in order._counts


def test_the_largest_crowd_gives_up_half_of_its_connections_that_came_last() -> None:
    order = filled(a=3, b=7, c=1)
    assert order.give_up() == ["b6", "b5", "b4"]
    assert len(order) == 8
    assert [order.take(100.0) for _ in range(8)] == ["a0", "b0", "c0", "a1", "b1", "a2", "b2", "b3"]


def test_who_has_one_connection_gives_none_up() -> None:
    order = filled(a=1, b=1)
    assert order.give_up() == []
    assert taken(order, 3) == ["a0", "b0", None]
    assert order.give_up() == []
