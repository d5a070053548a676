"""Loads, verdicts and saved files of the policy benchmark in a real pool; without a pool."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from bench.load.open_load import LATE_MS, REFUSED, RIGHT, Load
from bench.policy.loads import PROFILES
from bench.policy.verdicts import Verdict
from bench.policy_pool.engine import after_spike
from bench.policy_pool.findings import Findings, Settings, print_verdicts
from bench.policy_pool.parts import PARTS
from bench.policy_pool.sites import shares_of_cores
from bench.policy_pool.waits import PROFILE, late, phases_of, start_of
from bench.support.children import on_cores


@pytest.mark.parametrize("shape", ["poisson", "on-off"])
@pytest.mark.parametrize("seconds", [0.3, 8.0, 30.0])
def test_every_shape_offers_the_mean_rate(shape: str, seconds: float) -> None:
    phases = phases_of(shape, 100.0, seconds, PROFILES[PROFILE])
    total_s = sum(s for _, s in phases)
    assert sum(rate * s for rate, s in phases) / total_s == pytest.approx(100.0)
    assert total_s == pytest.approx(seconds, abs=0.7)


def test_figures_count_from_whole_cycles_on() -> None:
    phases = phases_of("on-off", 100.0, 12.0, PROFILES[PROFILE])
    cycle_s = phases[0][1] + phases[1][1]
    start_s = start_of(phases, 0.5)
    assert start_s / cycle_s == pytest.approx(round(start_s / cycle_s))
    assert start_s <= sum(s for _, s in phases) / 2 < start_s + cycle_s
    assert start_of([(100.0, 8.0)], 0.05) == pytest.approx(0.4)


def test_sites_have_cores_of_their_own_or_share_them_all() -> None:
    here = frozenset(os.sched_getaffinity(0))
    shares = shares_of_cores(5)
    assert shares == [here] or all(len(cores) == 3 for cores in shares)
    assert sum(map(len, shares)) == len(frozenset().union(*shares)) <= len(here)
    with on_cores(frozenset(sorted(here)[:1])):
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == here


def test_senders_that_were_late_are_a_verdict() -> None:
    assert late({"a": LATE_MS}).holds
    assert not late({"a": 0.5, "b": LATE_MS + 0.1}).holds


def test_how_long_a_spike_is_noticed() -> None:
    """Two seconds from 1 s on; refusals until 0.25 s after it, slow answers until 0.45 s."""
    at_s = np.arange(0, 5, 0.01)
    what = np.where((at_s > 1) & (at_s < 3.25), REFUSED, RIGHT)
    took_ms = np.where((at_s > 1) & (at_s < 3.45), 300.0, 10.0)
    found = after_spike(Load(at_s, took_ms, what, np.zeros(len(at_s))), 3.0, 2.0, 10.0)
    assert found["last_refused_s"] == pytest.approx(0.24)
    assert found["usual_again_s"] == pytest.approx(0.5)


def test_what_a_part_found_is_saved_after_each_figure(tmp_path: Path) -> None:
    path = tmp_path / "policy_pool_waits.json"
    findings = Findings("waits", tmp_path)
    findings.add("cell", {"p99_ms": 1.23456, "none": float("nan"), "cores": [3, 3]})
    told = json.loads(path.read_text())
    assert told["rows"] == {"cell": {"p99_ms": 1.235, "none": None, "cores": [3, 3]}}
    assert told["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert not told["complete"]
    assert not print_verdicts(path), "it is not complete"
    holds, fails = Verdict("holds"), Verdict("fails")
    holds.add(0.5, "half")
    fails.add(float("nan"), "nothing was answered")
    findings.judge([holds, Verdict("without a case")])
    findings.end()
    assert print_verdicts(path)
    findings.judge([fails])
    assert not print_verdicts(path)
    verdicts = json.loads(path.read_text())["verdicts"]
    assert {name: told["failed"] for name, told in verdicts.items()} == {"holds": 0, "fails": 1}


def test_a_trial_is_shorter_but_never_empty() -> None:
    assert Settings(0.1, "cpu").seconds(8.0) == pytest.approx(0.8)
    assert Settings(0.01, "cpu").seconds(8.0) == 0.3
    assert sum(part.usual_s for part in PARTS.values()) < 600
