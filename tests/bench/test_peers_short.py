"""bench.peers short: what its sweep tries, and who gets which cores."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from bench.peers.envs import Envs
from bench.peers.load import questions
from bench.peers.roster import OURSELVES
from bench.peers.rounds import Found
from bench.peers.settings import Setting
from bench.peers.short import Short, Wanted, grid_of
from bench.peers.split import Split, move
from bench.peers.stage import Stage
from bench.support.children import on_cores


def test_a_short_sweep_asks_for_no_more_than_a_machine_has() -> None:
    start, grid = grid_of(OURSELVES, 16)
    assert (start.apis, grid["apis"]) == (4, (4, 6, 8, 2))
    assert grid_of("mosec", 16)[1]["workers"] == (4, 2, 6, 8)
    assert grid_of("litserve", 16)[1]["apis"] == (8, 4, 12)
    assert grid_of("pytriton", 16)[1]["apis"] == (8, 4)
    for name in (OURSELVES, "mosec", "litserve", "pytriton", "ray"):
        start, grid = grid_of(name, 2)
        for key, values in grid.items():
            assert getattr(start, key) in values, f"{name}: what it starts with is tried, {key}"
    assert {*grid_of(OURSELVES, 2)[1]["apis"]} == {1}


@pytest.fixture
def found() -> Found:
    machine = {"cores": 16}
    return Found(machine, {}, {"mosec": {"title": "Mosec", "version": "1", "settings": {}}})


def a_short(found: Found, monkeypatch: pytest.MonkeyPatch, rates: dict[int, list[int]]) -> Short:
    """One whose servers answer at these rates, by workers."""

    def attempt(*told: object) -> dict[str, object]:
        setting = told[3]
        assert isinstance(setting, Setting)
        return {"rates": rates[setting.workers]}

    monkeypatch.setattr("bench.peers.short.attempt", attempt)
    wanted = Wanted(["mosec"], "mlp", "cpu", [64], [64, 256], 1, 1, 100.0, "no", 1000.0)
    monkeypatch.setattr("bench.peers.short.usable", lambda *_: iter(["mosec"]))
    stage = Stage("cpu", Envs(), Split(1))
    asked = questions("affine", "cpu")
    return Short(wanted, stage, found, asked, lambda found: None, time.monotonic())


def test_a_short_sweep_goes_on_from_the_best_of_each_key(
    found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = {2: [9, 16], 4: [10, 12], 6: [15, 15], 8: [0, 0]}
    run = a_short(found, monkeypatch, rates)
    run.sweep()
    assert run.best == {"mosec": Setting(2, 1, 64, 1)}, "16 at one of its loads"
    assert len(found.tried) == 4 + 2 + 1, "the one that stands is not tried again"
    assert run.rate == {"mosec": 16}
    assert found.peers["mosec"]["settings"]["mlp"]["origin"] == "swept on cpu, 16 cores"


def test_a_short_sweep_in_which_nothing_works(
    found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_short(found, monkeypatch, {workers: [0, 0] for workers in (2, 4, 6, 8)})
    run.sweep()
    assert run.best == {}
    assert found.notes[-1]["reason"] == "no setting of the sweep works"


def test_cores_of_the_load_and_of_the_server() -> None:
    cores = frozenset(range(16))
    assert Split(4).of_load(cores) == Split(4).of_server(cores) == cores
    pinned = Split(4, pinned=True)
    assert pinned.of_load(cores) == frozenset(range(12, 16))
    assert pinned.of_server(cores) == frozenset(range(12))
    with pytest.raises(ValueError, match="no core"):
        Split(16, pinned=True).of_server(cores)


def test_a_process_and_what_it_starts_are_moved() -> None:
    cores = frozenset(os.sched_getaffinity(0))
    one = frozenset({min(cores)})
    with on_cores(one), subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as child:
        assert os.sched_getaffinity(child.pid) == one
        move([child.pid, 2**22 + 1], cores)
        assert os.sched_getaffinity(child.pid) == cores
        child.communicate(b"\n")
    assert os.sched_getaffinity(0) == cores
