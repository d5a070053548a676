"""Events of a run of the simulator, and their probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Profile:
    """The events of a run. kills: probability per step of each role.

    cancels, reaps: per step of a client. late: per request; poison, raises, refuses: per row.

    adaptive: how many runs have that policy; half as many have a target too.

    staged: the model has stages besides `infer`, with as many workers of their own: "before" it,
    "after" it, or "around" it. arena: its lanes have an arena, too small for the rows of all slots.

    generates: the model is a generator, whose rows are sequences.

    named: requests are of several callers, some of whom give themselves names.

    steps: steps before the quiet end, nested ones too. preempt: the mean number of loads and
    stores between two preemptions, one of these; 0: none. slots: of a lane, one of these.
    replaces, moves: the probability per step that a worker is replaced, or that a move begins.
    enforce: whether tests/sim/rules.py judges every store, or only what comes of them counts.
    """

    steps: int = 400
    clients: int = 2
    workers: int = 2
    slots: tuple[int, ...] = (3, 8, 8)
    rows_max: int = 3
    max_lanes: int = 5
    preempt: tuple[int, ...] = (6, 20, 60)
    kills: Mapping[str, float] = field(default_factory=dict)
    cancels: float = 0.1
    reaps: float = 0.7
    late: float = 0.1
    poison: float = 0.0
    raises: float = 0.01
    refuses: float = 0.0
    adaptive: float = 0.5
    replaces: float = 0.0
    moves: float = 0.0
    staged: str = ""
    arena: bool = False
    generates: bool = False
    named: bool = False
    enforce: bool = True


PROFILES = {
    "calm": Profile(),
    "busy": Profile(preempt=(6,), cancels=0.7, late=0.7),
    "crowded": Profile(
        clients=1,
        slots=(1,),
        rows_max=1,
        reaps=0.3,
        kills={"batcher": 0.15},
        cancels=0,
        adaptive=0,
    ),
    "client": Profile(kills={"client": 0.03}),
    "batcher": Profile(kills={"batcher": 0.08}),
    "worker": Profile(kills={"worker": 0.08}, poison=0.01),
    "poison": Profile(
        clients=1,
        workers=1,
        rows_max=1,
        preempt=(60,),
        kills={"batcher": 0.2, "worker": 0.05},
        poison=0.2,
        late=0,
        cancels=0,
    ),
    "companions": Profile(
        workers=1, rows_max=2, preempt=(60,), kills={"batcher": 0.2}, raises=0.3, late=0, cancels=0
    ),
    "refused": Profile(
        slots=(8, 12), kills={"batcher": 0.06, "worker": 0.02}, refuses=0.2, raises=0.05
    ),
    "reload": Profile(kills={"batcher": 0.05, "worker": 0.02}, replaces=0.1, raises=0.1),
    "moves": Profile(
        max_lanes=10,
        kills={"batcher": 0.04, "worker": 0.01, "client": 0.005},
        moves=0.05,
        replaces=0.02,
    ),
    "stages": Profile(
        staged="before",
        kills={"client": 0.005, "batcher": 0.05, "worker": 0.03},
        refuses=0.05,
        raises=0.05,
        poison=0.01,
        replaces=0.02,
    ),
    "stages that move": Profile(
        staged="before",
        workers=1,
        max_lanes=10,
        kills={"batcher": 0.04, "worker": 0.01, "client": 0.005},
        moves=0.05,
    ),
    "three stages": Profile(
        staged="around",
        kills={"client": 0.005, "batcher": 0.05, "worker": 0.03},
        refuses=0.05,
        raises=0.05,
        poison=0.01,
        replaces=0.02,
    ),
    "postprocess only": Profile(
        staged="after",
        kills={"client": 0.005, "batcher": 0.05, "worker": 0.03},
        refuses=0.05,
        raises=0.05,
        poison=0.01,
    ),
    "three stages that move": Profile(
        staged="around",
        workers=1,
        max_lanes=10,
        kills={"batcher": 0.04, "worker": 0.01, "client": 0.005},
        moves=0.05,
    ),
    "arena": Profile(
        steps=300,
        preempt=(60, 200),
        max_lanes=8,
        arena=True,
        kills={"client": 0.005, "batcher": 0.05, "worker": 0.03},
        poison=0.01,
        raises=0.03,
        moves=0.02,
        cancels=0.2,
    ),
    "generator": Profile(
        generates=True,
        slots=(8, 12),
        preempt=(20, 60, 200),
        kills={"client": 0.005, "batcher": 0.05, "worker": 0.03},
        poison=0.02,
        raises=0.03,
        refuses=0.03,
        replaces=0.02,
        cancels=0.15,
    ),
    "sequences that fail": Profile(
        generates=True,
        clients=1,
        workers=1,
        preempt=(60,),
        kills={"batcher": 0.1},
        poison=0.05,
        raises=0.15,
        late=0,
        cancels=0,
    ),
    "names": Profile(
        named=True,
        slots=(12, 24),
        workers=1,
        kills={"batcher": 0.04, "worker": 0.03},
        raises=0.03,
        late=0.3,
        cancels=0.3,
    ),
    "all": Profile(kills={"client": 0.01, "batcher": 0.03, "worker": 0.03}, poison=0.01),
}
