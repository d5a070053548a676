"""Seeded runs of the whole pool, and a kill after every single store of short ones.

BATCHPOOL_SIM_SEEDS: how many seeds of each kind (default 5, and 200 more in the long tests).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from batchpool.core.layout.states import SlotState
from tests.sim.callers import ClientActor
from tests.sim.generators import StoryClientActor
from tests.sim.memory import Fault
from tests.sim.profiles import PROFILES, Profile
from tests.sim.run import sweep
from tests.sim.world import World, simulate

SEEDS = int(os.environ.get("BATCHPOOL_SIM_SEEDS", "5"))
MORE_SEEDS = 200
ROUNDS = 8
SHORT = Profile(slots=(8,), preempt=(0,), workers=1, late=0.2, cancels=0.2)
MOVE = Profile(slots=(8,), preempt=(0,), workers=1, late=0.2, cancels=0.2, moves=1.0, max_lanes=10)
SHORTEST = Profile(slots=(8,), preempt=(0,), clients=1, workers=1, late=0.2, cancels=0.2)
ARENA = Profile(slots=(8,), preempt=(0,), workers=1, late=0.2, cancels=0.2, arena=True)
STORY = Profile(slots=(8,), preempt=(0,), workers=1, late=0.2, cancels=0.2, generates=True)
STAGES = Profile(slots=(8,), preempt=(0,), workers=1, late=0.2, cancels=0.2, staged="before")


@pytest.mark.parametrize(
    ("first", "seeds"), [(0, SEEDS), pytest.param(SEEDS, MORE_SEEDS, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("kind", PROFILES)
def test_seeds(kind: str, first: int, seeds: int) -> None:
    count, faults = sweep(kind, first, seeds)
    assert not faults, "\n\n".join(faults)
    assert count.runs == seeds
    assert count.answers > 3 * seeds, "the runs do something"
    assert (count.deaths > 0) == bool(PROFILES[kind].kills)


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = simulate(7, "all"), simulate(7, "all")
    assert first.trace == second.trace
    assert first.events == second.events


def deaths_of(world: World) -> set[str]:
    return {name for name in world.plan if name in world.buried}


def survive(seed: int, profile: Profile, plan: dict[str, int]) -> World:
    """A short run with planned deaths."""
    world = World(seed, profile, plan)
    try:
        world.run_in_rounds(2 * ROUNDS if profile.moves else ROUNDS)
    except Fault as fault:
        steps = "\n".join(world.trace)
        pytest.fail(f"seed {seed}, deaths {plan}: {fault!r}\n{steps}")
    return world


def each_store(seed: int, profile: Profile, name: str, step: int = 1) -> Iterator[int]:
    """Kill the process after its first store, its second, ... until it has no more."""
    store = 1
    while deaths_of(survive(seed, profile, {name: store})):
        yield store
        store += step


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
@pytest.mark.parametrize("role", ["client", "batcher", "worker"])
def test_a_death_after_any_store(role: str, seed: int) -> None:
    stores = sum(1 for _ in each_store(seed, SHORT, f"{role} 1"))
    assert stores > 20


def thinly(*cases: tuple[str, int]) -> list[Any]:
    """Of each process and step every third store, and in the long tests those between as well."""
    return [
        *((name, 3 * step) for name, step in cases),
        *(pytest.param(*case, marks=pytest.mark.long) for case in cases),
    ]


@pytest.mark.parametrize(
    ("name", "step"), thinly(("batcher 1", 3), ("worker 1", 2), ("worker 2", 2))
)
def test_a_death_after_any_store_of_a_model_with_stages(name: str, step: int) -> None:
    """worker 1 preprocesses, worker 2 infers."""
    assert sum(1 for _ in each_store(1, STAGES, name, step)) > 4


@pytest.mark.parametrize(
    ("name", "step"), thinly(("batcher 1", 11), ("worker 2", 5), ("worker 3", 5))
)
def test_a_death_after_any_store_of_a_model_with_three_stages(name: str, step: int) -> None:
    """worker 1 preprocesses, worker 2 infers, worker 3 postprocesses."""
    profile = replace(STAGES, staged="around")
    assert sum(1 for _ in each_store(1, profile, name, step)) > 1


@pytest.mark.parametrize(
    ("name", "step"), thinly(("batcher 1", 9), ("worker 1", 5), ("worker 2", 5))
)
def test_a_death_after_any_store_of_a_model_that_postprocesses(name: str, step: int) -> None:
    """worker 1 infers, worker 2 postprocesses."""
    profile = replace(STAGES, staged="after")
    assert sum(1 for _ in each_store(1, profile, name, step)) > 1


@pytest.mark.parametrize(
    ("name", "step"), thinly(("client 1", 23), ("batcher 1", 3), ("worker 1", 2))
)
def test_a_death_after_any_store_with_an_arena(name: str, step: int) -> None:
    assert sum(1 for _ in each_store(1, ARENA, name, step)) > 4


@pytest.mark.parametrize(
    ("name", "step"), thinly(("client 1", 5), ("batcher 1", 3), ("worker 1", 3))
)
def test_a_death_after_any_store_of_a_generator(name: str, step: int) -> None:
    assert sum(1 for _ in each_store(1, STORY, name, step)) > 4


def test_worker_and_batcher_of_a_generator_die_together() -> None:
    for store in each_store(2, STORY, "worker 1", 83):
        for batcher in range(1, 120, 29):
            survive(2, STORY, {"worker 1": store, "batcher 1": batcher, "batcher 2": 1 + batcher})


def test_clients_see_tokens_while_their_rows_run() -> None:
    world = simulate(3, "generator")
    clients = [actor for actor in world.actors if isinstance(actor, StoryClientActor)]
    assert sum(client.streamed for client in clients) > 10


@pytest.mark.parametrize("every", [13, pytest.param(5, marks=pytest.mark.long)])
def test_a_successor_dies_while_rows_are_between_stages(every: int) -> None:
    takeovers = 0
    for staged, step in (("before", 17), ("around", 37)):
        for first in range(1, 400, step):
            for second in range(1, 40, every):
                plan = {"batcher 1": first, "batcher 2": second}
                profile = replace(STAGES, staged=staged)
                takeovers += len(deaths_of(survive(1, profile, plan))) == 2
    assert takeovers > 375 // every


@pytest.mark.parametrize(
    ("name", "most"), [("client 1", 160), ("batcher 1", 260), ("worker 1", 90)]
)
def test_a_death_in_the_middle_of_a_move(name: str, most: int) -> None:
    """After every few stores of who has the old lane, moves it, or serves it."""
    assert survive(2, MOVE, {}).moving.done == 1
    for store in range(1, most, 5):
        survive(2, MOVE, {name: store})


@pytest.mark.parametrize(("seed", "step"), [(0, 7), pytest.param(1, 11, marks=pytest.mark.long)])
def test_the_successor_dies_after_any_store_too(seed: int, step: int) -> None:
    """A batcher that dies in the middle of a takeover, wherever its predecessor died."""
    takeovers = 0
    for first in each_store(seed, SHORTEST, "batcher 1", step):
        second = 1
        plan = {"batcher 1": first, "batcher 2": second}
        while deaths_of(survive(seed, SHORTEST, plan)) == {"batcher 1", "batcher 2"}:
            takeovers += 1
            second += 1
            plan = {"batcher 1": first, "batcher 2": second}
    assert takeovers > 100


@pytest.mark.parametrize(
    ("seed", "step"),
    [(0, 15), (1, 15), *(pytest.param(n, 5, marks=pytest.mark.long) for n in (0, 1))],
)
def test_worker_and_batcher_die_together(seed: int, step: int) -> None:
    """The worker after any store, and the batcher's next one after the same number more."""
    for store in each_store(seed, SHORTEST, "worker 1", step):
        for batcher in range(1, 100, 11):
            survive(seed, SHORTEST, {"worker 1": store, "batcher 1": batcher})


def test_a_quiet_run_frees_every_slot() -> None:
    world = survive(3, SHORT, {})
    clients = [actor for actor in world.actors if isinstance(actor, ClientActor)]
    assert sum(client.answered for client in clients) > 2
    for client in clients:
        assert set(client.lane.memory.column("state")) == {SlotState.FREE}
