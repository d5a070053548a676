"""`run`: all peers in turns, round after round, and what became of each."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.load.heads import DIFFERING
from bench.peers import settings
from bench.peers.envs import Envs
from bench.peers.load import Cell, Questions, measure, questions
from bench.peers.roster import MODELS, OURSELVES, PEERS, SERVERS, Peer
from bench.peers.server import GaveUp, environment
from bench.peers.settings import Setting
from bench.peers.stage import Stage
from bench.support.machine import facts

TRIES = 2  # a server that failed so often is not started again


@dataclass(frozen=True)
class Wanted:
    """The arguments of `run`."""

    peers: Sequence[str]
    once: Sequence[str]
    models: Sequence[str]
    device: str
    rounds: int
    seconds: int
    patience_s: float
    connections: Sequence[int] = (1, 64, 256)

    @property
    def plan(self) -> list[tuple[int, int]]:
        """Connections and seconds."""
        return [(n, self.seconds if n > 1 else max(1, self.seconds // 2)) for n in self.connections]


@dataclass
class Found:
    """The results, as they are saved. notes: (peer, model, round, reason); tried: of a sweep;
    offered: open loops."""

    machine: dict[str, Any]
    wanted: dict[str, Any]
    peers: dict[str, dict[str, Any]] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    bare: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    notes: list[dict[str, Any]] = field(default_factory=list)
    offered: list[dict[str, Any]] = field(default_factory=list)
    tried: list[dict[str, Any]] = field(default_factory=list)

    def note(self, peer: str, model: str, round_: int, reason: str) -> None:
        print(f"  {peer}, {model}, round {round_ + 1}: {reason}", flush=True)
        self.notes.append({"peer": peer, "model": model, "round": round_, "reason": reason})

    def failures(self, peer: str, model: str) -> int:
        return sum(note["peer"] == peer and note["model"] == model for note in self.notes)

    def save(self, path: str) -> None:
        """A line a run of wrk."""
        told = asdict(self)
        cells = ",\n".join(f"  {json.dumps(cell)}" for cell in told.pop("cells"))
        text = json.dumps(told, indent=1)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(f'{text.rstrip()[:-2]},\n "cells": [\n{cells}\n ]\n}}\n')


def loaded(path: str) -> Found:
    told = json.loads(Path(path).read_text())
    cells = [Cell(**cell) for cell in told.pop("cells")]
    return Found(**told, cells=cells)


def run(wanted: Wanted, stage: Stage, told: Callable[[Found], None]) -> Found:
    """told: called after every server, so that nothing is lost that was measured."""
    stage.envs.wrk()
    found = Found({**facts(), "wrk": str(stage.split)}, asdict(wanted))
    asked = {model: questions(model, wanted.device) for model in (*wanted.models, "echo")}
    chosen = choose(wanted, stage.envs, found)
    start_s = time.monotonic()
    for round_ in range(wanted.rounds):
        for model, name in schedule(wanted, found.peers, round_):
            if found.failures(name, model) >= TRIES:
                continue
            of = asked[model if PEERS[name].has_model else "echo"]
            cells = turn(stage, PEERS[name], model, chosen[name, model], of, wanted.plan, round_)
            took_s = time.monotonic() - start_s
            print(f"  {took_s:5.0f} s  {round_ + 1}  {model}  {name}: ", end="", flush=True)
            take(found, name, model, round_, cells)
            told(found)
        if "mlp" in wanted.models:
            found.bare.setdefault("mlp", []).append(bare_rates("mlp", wanted.device, stage.envs))
            told(found)
    return found


def take(found: Found, name: str, model: str, round_: int, cells: Iterator[Cell]) -> None:
    """Keeps the cells that a server's round gives, and notes the reason where it ends early."""
    try:
        for cell in cells:
            found.cells.append(cell)
            kind = "" if cell.heads == DIFFERING else f" ({cell.heads} heads)"
            print(f" {cell.connections}: {cell.rate:,.0f}/s{kind}", end="", flush=True)
    except (GaveUp, ValueError) as reason:
        print()
        found.note(name, model, round_, str(reason))
    else:
        print(flush=True)


def choose(wanted: Wanted, envs: Envs, found: Found) -> dict[tuple[str, str], Setting]:
    """Settings of all that can take part; `found` gets them too, and why others cannot."""
    cores = len(os.sched_getaffinity(0))
    swept = settings.load()
    chosen = {}
    for name in usable(found, envs, dict.fromkeys((*wanted.peers, *wanted.once)), wanted.models):
        peer = PEERS[name]
        for model in MODELS:
            setting, origin = settings.chosen(swept, name, model, wanted.device, cores, peer.start)
            chosen[name, model] = setting
            found.peers[name]["settings"][model] = {**asdict(setting), "origin": origin}
    return chosen


def usable(found: Found, envs: Envs, names: Iterable[str], models: Iterable[str]) -> Iterator[str]:
    """Those that can run here; each gets its place in `found`, or a note."""
    for name in names:
        peer = PEERS[name]
        if why := envs.missing(peer):
            for model in models:
                found.note(name, model, 0, f"skipped: {why}")
            continue
        found.peers[name] = {"title": peer.title, "version": envs.version(peer), "settings": {}}
        yield name


def schedule(wanted: Wanted, usable: Iterable[str], round_: int) -> Iterator[tuple[str, str]]:
    """The turns of a round: (model, peer). References, which have no model, come once a round."""
    for model in wanted.models:
        for name in usable:
            is_again = round_ > 0 and name not in wanted.peers
            is_twin = model != wanted.models[0] and not PEERS[name].has_model
            if not is_again and not is_twin:
                yield model, name


def turn(
    stage: Stage,
    peer: Peer,
    model: str,
    setting: Setting,
    asked: Questions,
    plan: Sequence[tuple[int, int]],
    round_: int,
) -> Iterator[Cell]:
    """One server, from its start to its end."""
    with stage.ready(peer, model, setting, asked) as wrk:
        stage.warm_up(wrk, round_)
        yield from measure(replace(wrk, patience_s=stage.patience_s), plan, round_)


def bare_rates(model: str, device: str, envs: Envs, seconds: float = 1.0) -> dict[str, float]:
    """Rows per second of the model alone, by batch; one process, one thread."""
    plan = {"model": model, "device": device, "ports": [0], "folder": "", "seconds": seconds}
    ourselves = PEERS[OURSELVES]
    done = subprocess.run(
        [str(envs.python(ourselves)), str(SERVERS / "bare.py")],
        env=environment(ourselves, envs, plan),
        capture_output=True,
        text=True,
        check=True,
    )
    rates: dict[str, float] = json.loads(done.stdout)
    return rates
