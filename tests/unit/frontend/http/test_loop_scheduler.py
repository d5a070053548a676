"""The order in which callers' work is done, and how much a turn does: loop and clocks are the
test's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.frontend.http import loop_scheduler
from batchpool.frontend.http.loop_scheduler import LoopScheduler, OriginShare

TURN_S = 2 * loop_scheduler._AT_ONCE_S
PIECE_S = TURN_S / 10


class Loop:
    """A loop that runs what is due when it is told."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.errors: list[Exception] = []

    def call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        self.soon.append(partial(call, *arguments))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context["exception"])

    def turn(self) -> None:
        due, self.soon = self.soon, []
        for call in due:
            call()


class Scene:
    """A scheduler, and callers whose pieces of work take the time that they say."""

    def __init__(self) -> None:
        self.now_s = self.cpu_s = 100.0
        self.exchanges = 0
        self.done: list[str] = []
        self.loop = Loop()
        self.scheduler = LoopScheduler(self._exchange, lambda: self.now_s, lambda: self.cpu_s)

    def _exchange(self) -> None:
        self.exchanges += 1
        self.done.append("(exchange)")

    def work(self, origin: str, took_s: float, preempted_s: float = 0.0) -> None:
        self.now_s += took_s + preempted_s
        self.cpu_s += took_s
        self.done.append(origin)

    def share(self, origin: str) -> OriginShare:
        return self.scheduler.share_of(origin)

    def come(self, origin: str, took_s: float = PIECE_S, preempted_s: float = 0.0) -> bool:
        """Bytes have come; True if they were handled at once."""
        share, work = self.share(origin), partial(self.work, origin, took_s, preempted_s)
        loop = cast(Any, self.loop)
        if self.scheduler.is_full and self.scheduler.defers(share):
            self.scheduler.defer(loop, share, work)
            return False
        begun_s = self.scheduler.begin(loop)
        work()
        self.scheduler.charge(share, begun_s)
        return True

    def turn(self) -> list[str]:
        """The end of a turn: what was done of the queue."""
        before = len(self.done)
        self.loop.turn()
        return self.done[before:]


def crowd(scene: Scene, n: int = 10, pieces: int = 20) -> None:
    """n origins send so many pieces each, of which one turn does no more than a part."""
    for _ in range(pieces):
        for number in range(n):
            scene.come(f"stranger {number}")


def test_a_turn_does_no_more_at_once_than_its_part_whatever_comes() -> None:
    scene = Scene()
    crowd(scene)
    assert len(scene.done) == pytest.approx(TURN_S / 2 / PIECE_S, abs=1)


def test_a_turn_does_no_more_of_the_queue_than_its_part() -> None:
    scene = Scene()
    crowd(scene)
    for _ in range(5):
        begun_s = scene.now_s
        assert scene.turn()[0] == "(exchange)"
        assert scene.now_s - begun_s <= TURN_S / 2 + PIECE_S
        assert scene.scheduler.is_full


def test_rows_are_exchanged_every_so_often_in_a_turn_that_is_full() -> None:
    scene = Scene()
    every_s = loop_scheduler._EXCHANGE_S
    crowd(scene)
    assert scene.scheduler.is_full
    before = scene.exchanges
    for _ in range(10):  # what comes is left for later, which takes some time as well
        scene.now_s += every_s * 0.6
        scene.come("stranger 1")
    assert scene.exchanges - before == 5
    # Behind each long piece of the queue.
    while scene.loop.soon:
        scene.turn()
    loop = cast(Any, scene.loop)
    for name in ("w", "x", "y", "z"):
        scene.scheduler.defer(loop, scene.share(name), partial(scene.work, name, every_s))
    scene.done.clear()
    while scene.loop.soon:
        scene.turn()
    assert scene.done == [
        "(exchange)",
        "w",
        "(exchange)",
        "x",
        "(exchange)",
        "y",
        "(exchange)",
        "z",
    ]


def test_rows_are_not_exchanged_within_a_turn_that_is_not_full() -> None:
    scene = Scene()
    for _ in range(4):
        assert scene.come("a", loop_scheduler._AT_ONCE_S / 9)
        assert scene.come("b", loop_scheduler._AT_ONCE_S / 9)
        scene.now_s += 10 * loop_scheduler._EXCHANGE_S
    assert scene.exchanges == 0
    scene.turn()
    assert scene.exchanges == 0


def test_the_queue_ends() -> None:
    scene = Scene()
    crowd(scene)
    while scene.loop.soon:
        scene.turn()
    assert Counter(scene.done)["stranger 3"] == 20
    assert sum(name.startswith("stranger") for name in scene.done) == 200
    assert not scene.scheduler.is_full


@pytest.mark.parametrize("crowd_size", [3, 30, 300])
def test_the_wait_of_a_caller_who_asks_for_little_does_not_depend_on_how_many_ask(
    crowd_size: int,
) -> None:
    scene = Scene()
    crowd(scene, crowd_size, 5 + 600 // crowd_size)
    for _ in range(3):
        scene.turn()
    for _ in range(4):
        scene.done.clear()
        begun_s = scene.now_s
        scene.come("honest")
        scene.turn()
        # At once, or first of the queue, behind what was handed over.
        assert "honest" in scene.done[:2], scene.done
        assert scene.now_s - begun_s <= TURN_S + 2 * PIECE_S
        for _ in range(crowd_size):
            scene.turn()


def test_origins_that_wait_get_equal_times_whatever_a_piece_takes() -> None:
    scene = Scene()
    spent: Counter[str] = Counter()
    for _ in range(400):
        for name, took_s in (("short", PIECE_S / 4), ("long", PIECE_S)):
            share = scene.share(name)
            while len(share.waiting) < 20:
                work = partial(scene.work, name, took_s)
                scene.scheduler.defer(cast(Any, scene.loop), share, work)
        for name in scene.turn():
            spent[name] += {"short": 1, "long": 4}.get(name, 0)
    assert spent["short"] == pytest.approx(spent["long"], rel=0.1)


def test_many_connections_of_one_origin_are_one() -> None:
    scene = Scene()
    for _ in range(300):
        scene.come("many")
        scene.come("many")
        scene.come("other")
    for _ in range(20):
        scene.turn()
    found = Counter(scene.done)
    assert found["many"] == pytest.approx(found["other"], abs=3)


def test_an_origin_alone_waits_for_nobody() -> None:
    scene = Scene()
    assert all(scene.come("alone") for _ in range(100))
    assert scene.turn() == []


def test_an_origin_alone_need_not_be_charged_until_another_one_comes() -> None:
    scene = Scene()
    scene.come("alone")
    assert scene.scheduler.alone is None  # until the end of the turn: others may come in it
    scene.turn()
    assert scene.scheduler.alone is scene.share("alone")
    scene.come("other")
    assert scene.scheduler.alone is None
    scene.turn()
    assert scene.scheduler.alone is None
    scene.now_s += loop_scheduler._ALONE_S
    scene.come("alone")
    scene.turn()
    assert scene.scheduler.alone is None  # another one's work was followed by its own just now
    scene.now_s += loop_scheduler._ALONE_S
    scene.come("alone")
    scene.turn()
    assert scene.scheduler.alone is scene.share("alone")


def test_an_origin_is_alone_again_a_second_after_another_ones_work() -> None:
    scene = Scene()
    scene.come("other")
    scene.come("alone")
    assert not all(scene.come("alone") for _ in range(100))
    while scene.loop.soon:
        scene.turn()
    scene.now_s += loop_scheduler._ALONE_S
    assert all(scene.come("alone") for _ in range(100))


def test_time_in_which_other_programs_had_the_processor_is_nobodys() -> None:
    scene = Scene()
    crowd(scene, 4)
    scene.turn()
    scene.come("honest", preempted_s=0.05)
    for _ in range(6):
        scene.turn()
    scene.done.clear()
    scene.come("honest")
    scene.turn()
    assert "honest" in scene.done[:2]


def test_time_in_which_others_had_the_processor_is_not_made_up_of_what_was_done_before() -> None:
    scene = Scene()
    crowd(scene, 4)
    before_s = scene.share("honest").start_s = scene.scheduler._virtual_s
    begun_s = scene.scheduler.begin(cast(Any, scene.loop))
    scene.work("honest", PIECE_S, preempted_s=0.05)
    scene.scheduler.charge(scene.share("honest"), begun_s)
    assert scene.share("honest").start_s == pytest.approx(before_s + PIECE_S)
    scene.scheduler.defer(
        cast(Any, scene.loop), scene.share("late"), partial(scene.work, "late", PIECE_S, 0.05)
    )
    scene.share("late").start_s = before_s
    while "late" not in scene.done:
        scene.turn()
    assert scene.share("late").start_s == pytest.approx(before_s + PIECE_S)


def test_an_origin_that_had_little_may_ask_several_times_at_once() -> None:
    scene = Scene()
    crowd(scene, 10, 100)
    for _ in range(100):
        scene.turn()
    pieces = round(loop_scheduler._CREDIT_S / PIECE_S)
    scene.done.clear()
    for _ in range(pieces + 5):
        scene.come("honest")
    for _ in range(5):
        scene.turn()
    # The credit, one piece where virtual time is, and of those beyond no more than of others.
    done = [name for name in scene.done if name != "(exchange)"]
    assert set(done[:pieces]) == {"honest"}, done
    assert done.count("honest") <= pieces + 2


def test_an_origin_without_work_saves_no_more_than_its_credit() -> None:
    scene = Scene()
    for _ in range(100):
        crowd(scene, 5, 4)
        scene.turn()
    spent, begun_s = 0, scene.now_s
    while scene.now_s - begun_s < 60 * PIECE_S:
        for _ in range(20):
            scene.come("idle until now")
            crowd(scene, 5, 1)
        spent += scene.turn().count("idle until now")
    fair = (scene.now_s - begun_s) / 6
    assert spent * PIECE_S <= fair + loop_scheduler._CREDIT_S + 2 * PIECE_S


def test_work_that_fails_holds_nobody_up() -> None:
    scene = Scene()
    crowd(scene, 2)
    fault = ValueError("a fault")

    def fail() -> None:
        raise fault

    scene.scheduler.defer(cast(Any, scene.loop), scene.share("faulty"), fail)
    scene.come("behind")
    while scene.loop.soon:
        scene.turn()
    assert scene.loop.errors == [fault]
    assert "behind" in scene.done


def test_what_is_kept_of_origins_has_a_bound() -> None:
    scene = Scene()
    first = scene.share("0")
    for number in range(loop_scheduler._KEPT_ORIGINS):
        scene.share(f"{number}")
    assert scene.share("0") is first
    scene.share("one more")
    assert len(scene.scheduler._shares) == loop_scheduler._KEPT_ORIGINS
    assert scene.share("0") is first  # used of late


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.floats(0.0, 3 * TURN_S)), max_size=60))
def test_everything_is_done_once_and_in_the_order_of_its_origin(
    pieces: list[tuple[str, float]],
) -> None:
    scene = Scene()
    numbers: Counter[str] = Counter()
    for number, (origin, took_s) in enumerate(pieces):
        share = scene.share(origin)
        name = f"{origin}{numbers[origin]}"
        numbers[origin] += 1
        scene.scheduler.defer(cast(Any, scene.loop), share, partial(scene.work, name, took_s))
        if number % 7 == 0:
            scene.turn()
    while scene.loop.soon:
        scene.turn()
    for origin, n in numbers.items():
        of_origin = [name for name in scene.done if name[0] == origin]
        assert of_origin == [f"{origin}{i}" for i in range(n)]
