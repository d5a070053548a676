"""With any ordering rule broken a litmus test fails: each rule is needed and tested.

The broken side runs a patched copy of the real source (mutants.py); the other side is sound.
"""

from __future__ import annotations

import os

import pytest

from tests.litmus import segments
from tests.litmus.echo_lane import EchoLane, die_and_restart
from tests.litmus.mutants import ALL, LANE_MUTANTS, RING_MUTANTS, SOUND_DEATHS, Mutant
from tests.litmus.processes import Side, SideFailed, Sides
from tests.litmus.side_control import PATIENT_S

CAPACITY, START, ENTRIES = 8, 2**32 - 1500, 10_000
ROWS = 600
# What is lost is noticed by a side that stands still: soon where that is expected.
HASTY_S = 0.5

# Rules that only matter when a batcher dies at the worst moment.
CRASHES = {
    "after a takeover the client does not look at its slots",
    "an entry is admitted whatever its sequence",
    "an entry is admitted whatever the slot's state",
    "an entry of few or of neighbours is admitted whatever the slot's state",
}
DEATHS = {"the head before the rows are admitted"}
# Completions of another use come only from a hostile or dying other side.
STRAYS = {"any completion is taken for the slot's present use"}


def rules(mutants: list[Mutant]) -> list[str]:
    return [mutant.rule for mutant in mutants]


def patience_s(rule: str) -> float:
    """The time that a side of a ring may stand still: long where that is no sign of the rule."""
    return HASTY_S if rule and "no progress" in ALL[rule].seen else PATIENT_S


def run_ring(rule: str = "") -> None:
    fd = segments.new_ring(CAPACITY, START)
    task = {"fd": fd, "capacity": CAPACITY, "start": START, "total": ENTRIES}
    task["stall_s"] = patience_s(rule)
    broken = ALL[rule].side if rule else ""
    try:
        with Sides(
            *(
                Side(role, **task, rule=rule if role == broken else "")
                for role in ("consumer", "producer")
            )
        ) as sides:
            sides.finish()
    finally:
        os.close(fd)


def run_lane(rule: str = "", *, crashes: float = 0.0, strays: bool = False) -> None:
    stall_s = HASTY_S if rule else PATIENT_S
    echo_lane = EchoLane(4096, 12, ROWS, crashes=crashes, strays=strays, stall_s=stall_s)
    echo_lane.open()
    broken = ALL[rule].side if rule else ""
    try:
        with Sides(
            echo_lane.client(rule=rule if broken == "client" else ""),
            echo_lane.server(rule=rule if broken == "server" else ""),
        ) as sides:
            sides.finish()
    finally:
        echo_lane.close()


def run_death(rule: str) -> None:
    echo_lane = EchoLane(64, 12, None, stall_s=2 * HASTY_S if ALL[rule].seen else PATIENT_S)
    echo_lane.open()
    try:
        counted = die_and_restart(echo_lane, rule)
    finally:
        echo_lane.close()
    assert counted["sent"] == counted["answered"]


def test_the_unbroken_rules_pass_the_same_runs() -> None:
    run_ring()
    run_lane(crashes=0.2, strays=True)


@pytest.mark.parametrize("rule", rules(SOUND_DEATHS))
def test_in_the_right_order_a_death_does_no_harm(rule: str) -> None:
    run_death(rule)


@pytest.mark.parametrize("rule", rules(RING_MUTANTS))
def test_a_broken_ring_is_noticed(rule: str) -> None:
    with pytest.raises(SideFailed, match=ALL[rule].seen):
        run_ring(rule)


@pytest.mark.parametrize("rule", rules(LANE_MUTANTS))
@pytest.mark.long
def test_a_broken_lane_is_noticed(rule: str) -> None:
    with pytest.raises(SideFailed, match=ALL[rule].seen):
        if rule in DEATHS:
            run_death(rule)
        else:
            run_lane(rule, crashes=0.2 * (rule in CRASHES), strays=rule in STRAYS)


@pytest.mark.parametrize("rule", ALL)
def test_every_mutant_is_python(rule: str) -> None:
    compile(ALL[rule].source(), rule, "exec")
