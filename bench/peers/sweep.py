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
from bench.peers.envs import Envs
from bench.peers.load import measure, questions
from bench.peers.roster import PEERS, Peer
from bench.peers.rounds import WARM, ready
from bench.peers.server import GaveUp
from bench.peers.settings import Setting

_CONNECTIONS = (64, 256)
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
    peer: Peer, model: str, device: str, envs: Envs, rounds: int, seconds: int, patience_s: float
) -> tuple[Setting, list[dict[str, Any]]]:
    """The best, and all that was tried. GaveUp: nothing works."""
    asked = questions(model, device)
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
                rates, others_cores = rates_of(
                    peer, model, device, one, envs, asked, seconds, patience_s
                )
                scores[value] = max(scores[value], math.sqrt(math.prod(rates)))
                tried.append(
                    {
                        "peer": peer.name,
                        "model": model,
                        **asdict(one),
                        "rates": rates,
                        "others_cores": others_cores,
                    }
                )
                told = "  ".join(f"{rate:,.0f}/s" for rate in rates)
                print(f"  {peer.name}, {model}: {one}: {told} ({others_cores})", flush=True)
        if len(settings_of) > 1:
            try:
                setting = settings_of[best(key, scores)]
            except ValueError as error:
                raise GaveUp(str(error)) from None
    return setting, tried


def rates_of(
    peer: Peer,
    model: str,
    device: str,
    setting: Setting,
    envs: Envs,
    asked: Any,
    seconds: int,
    patience_s: float,
) -> tuple[Sequence[float], float]:
    """At 64 and 256 connections, 0 where it does not serve, or answers some otherwise; and the
    cores that others used at most."""
    try:
        with ready(peer, model, device, setting, envs, asked, patience_s) as wrk:
            measure(replace(wrk, patience_s=0.0), [(WARM[0], 1)], 0)
            cells = measure(wrk, [(connections, seconds) for connections in _CONNECTIONS], 0)
    except (GaveUp, ValueError) as reason:
        print(f"  {peer.name}, {model}: {setting}: {reason}", flush=True)
        return [0.0] * len(_CONNECTIONS), 0.0
    rates = [round(cell.rate) if not cell.failed else 0.0 for cell in cells]
    return rates, round(max(cell.others_cores for cell in cells), 2)


def sweep_all(
    names: Sequence[str],
    models: Sequence[str],
    device: str,
    envs: Envs,
    rounds: int,
    seconds: int,
    patience_s: float,
) -> list[dict[str, Any]]:
    """Into settings.json, one model of one peer after the other."""
    machine = settings.machine_name(device, len(os.sched_getaffinity(0)))
    tried: list[dict[str, Any]] = []
    for name in names:
        peer = PEERS[name]
        if why := envs.missing(peer):
            print(f"  {name}: skipped: {why}")
            continue
        for model in models:
            try:
                setting, of_model = sweep(peer, model, device, envs, rounds, seconds, patience_s)
            except GaveUp as reason:
                print(f"  {name}, {model}: {reason}")
                continue
            tried += of_model
            kept = settings.load()
            kept.setdefault(machine, {}).setdefault(name, {})[model] = setting
            settings.save(kept)
            print(f"  {name}, {model}: BEST {setting}", flush=True)
    return tried
