"""`sweep`: the best setting of a peer on this machine, one key after the other.

Each value of a key is tried with the best of the other keys so far, all values in turns, also
the one that stood before: the machine may be slower now. What counts is the geometric mean of
the rates at 64 and 256 connections, of its best round, since what else runs on a machine can
only take away. Of waits within 3 % of the best, the shortest wins: it costs a lone request least.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from bench.peers import settings
from bench.peers.load import Cell, Questions, questions
from bench.peers.roster import PEERS, Peer
from bench.peers.rounds import turn
from bench.peers.server import GaveUp
from bench.peers.settings import Setting
from bench.peers.stage import Stage

CONNECTIONS = (64, 256)
_ALIKE = 0.97


def values_of(peer: Peer, key: str, cores: int) -> tuple[Any, ...]:
    """Of processes only as many as there are cores."""
    values = peer.grid[key]
    if key not in ("workers", "apis"):
        return values
    return tuple(n for n in values if n <= cores) or values[:1]


def best(key: str, scores: Mapping[Any, float]) -> Any:
    """The value with the highest score; ValueError: no value has any."""
    most = max(scores.values(), default=0.0)
    if most <= 0:
        raise ValueError(f"no value of {key} works")
    if key == "wait_ms":
        return min(value for value, score in scores.items() if score >= _ALIKE * most)
    return max(scores, key=lambda value: scores[value])


def sweep(
    stage: Stage, peer: Peer, model: str, rounds: int, seconds: int
) -> tuple[Setting, list[dict[str, Any]]]:
    """The best, and all that was tried. GaveUp: nothing works."""
    asked = questions(model, stage.device)
    cores = len(os.sched_getaffinity(0))
    setting = peer.start
    tried: list[dict[str, Any]] = []
    for key in peer.grid:
        settings_of = {
            value: replace(setting, **{key: value}) for value in values_of(peer, key, cores)
        }
        scores = dict.fromkeys(settings_of, 0.0)
        for _ in range(rounds if len(settings_of) > 1 else 0):
            for value, one in settings_of.items():
                tried.append(attempt(stage, peer, model, one, asked, seconds))
                scores[value] = max(scores[value], score(tried[-1]))
        if len(settings_of) > 1:
            try:
                setting = settings_of[best(key, scores)]
            except ValueError as error:
                raise GaveUp(str(error)) from None
    return setting, tried


def attempt(
    stage: Stage,
    peer: Peer,
    model: str,
    setting: Setting,
    asked: Questions,
    seconds: int,
    connections: Sequence[int] = CONNECTIONS,
) -> dict[str, Any]:
    """Its rate at each number of connections, 0 where it does not serve, or answers some
    otherwise; and the cores that others used at most."""
    cells: list[Cell] = []
    try:
        plan = [(n, seconds) for n in connections]
        of_one_kind = replace(stage, heads=stage.heads[:1])
        cells += turn(of_one_kind, peer, model, setting, asked, plan, 0)
    except (GaveUp, ValueError) as reason:
        print(f"  {peer.name}, {model}: {setting}: {reason}", flush=True)
    rates = [round(cell.rate) if not cell.failed else 0 for cell in cells]
    rates += [0] * (len(connections) - len(cells))
    others = round(max((cell.others_cores for cell in cells), default=0.0), 2)
    told = "  ".join(f"{rate:,.0f}/s" for rate in rates)
    print(f"  {peer.name}, {model}: {setting}: {told} ({others})", flush=True)
    return {
        "peer": peer.name,
        "model": model,
        **asdict(setting),
        "connections": list(connections),
        "rates": rates,
        "others_cores": others,
    }


def score(tried: Mapping[str, Any]) -> float:
    """The geometric mean of its rates."""
    rates = tried["rates"]
    return float(math.prod(rates) ** (1 / len(rates)))


def sweep_all(
    stage: Stage, names: Sequence[str], models: Sequence[str], rounds: int, seconds: int
) -> list[dict[str, Any]]:
    """Into settings.json, one model of one peer after the other."""
    machine = settings.machine_name(stage.device, len(os.sched_getaffinity(0)))
    tried: list[dict[str, Any]] = []
    for name in names:
        peer = PEERS[name]
        if why := stage.envs.missing(peer):
            print(f"  {name}: skipped: {why}")
            continue
        for model in models:
            try:
                setting, of_model = sweep(stage, peer, model, rounds, seconds)
            except GaveUp as reason:
                print(f"  {name}, {model}: {reason}")
                continue
            tried += of_model
            kept = settings.load()
            kept.setdefault(machine, {}).setdefault(name, {})[model] = setting
            settings.save(kept)
            print(f"  {name}, {model}: BEST {setting}", flush=True)
    return tried
