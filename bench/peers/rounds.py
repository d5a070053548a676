"""`run`: all peers in turns, round after round, and what became of each."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.machine import facts
from bench.peers import settings
from bench.peers.envs import Envs
from bench.peers.load import Cell, Questions, Wrk, compare, measure, questions, serves
from bench.peers.roster import MODELS, OURSELVES, PEERS, SERVERS, Peer
from bench.peers.server import GaveUp, await_answer, environment, running
from bench.peers.settings import Setting

WARM = (64, 2)  # connections, seconds
_TRIES = 2  # a server that failed so often is not started again


@dataclass(frozen=True)
class Wanted:
    """What `run` was asked for."""

    peers: Sequence[str]
    once: Sequence[str]
    models: Sequence[str]
    device: str
    rounds: int
    seconds: int
    patience_s: float

    @property
    def plan(self) -> list[tuple[int, int]]:
        return [(1, max(1, self.seconds // 2)), (64, self.seconds), (256, self.seconds)]


@dataclass
class Found:
    """What `run` found; the file that --save names. notes: (peer, model, round, reason)."""

    machine: dict[str, Any]
    wanted: dict[str, Any]
    peers: dict[str, dict[str, Any]] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    bare: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    notes: list[dict[str, Any]] = field(default_factory=list)

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


@contextmanager
def ready(
    peer: Peer,
    model: str,
    device: str,
    setting: Setting,
    envs: Envs,
    asked: Questions,
    patience_s: float = 0.0,
) -> Iterator[Wrk]:
    """A server that answers right, and the load for it."""
    with running(peer, model, device, setting, envs) as server:
        await_answer(server, lambda: serves(server, asked))
        yield Wrk(envs.wrk(), server, asked, compare(server, asked), patience_s)


def run(wanted: Wanted, envs: Envs, told: Callable[[Found], None]) -> Found:
    """told: called after every server, so that nothing is lost that was measured."""
    envs.wrk()
    found = Found(facts(), asdict(wanted))
    asked = {model: questions(model, wanted.device) for model in (*wanted.models, "echo")}
    chosen = choose(wanted, envs, found)
    start_s = time.monotonic()
    for round_ in range(wanted.rounds):
        for model, name in schedule(wanted, found.peers, round_):
            if found.failures(name, model) >= _TRIES:
                continue
            try:
                cells = turn(PEERS[name], model, chosen[name, model], wanted, envs, asked, round_)
            except (GaveUp, ValueError) as reason:
                found.note(name, model, round_, str(reason))
            else:
                found.cells += cells
                rates = "  ".join(f"{cell.connections}: {cell.rate:,.0f}/s" for cell in cells)
                took_s = time.monotonic() - start_s
                print(f"  {took_s:5.0f} s  {round_ + 1}  {model}  {name}:  {rates}", flush=True)
            told(found)
        if "mlp" in wanted.models:
            found.bare.setdefault("mlp", []).append(bare_rates("mlp", wanted.device, envs))
            told(found)
    return found


def choose(wanted: Wanted, envs: Envs, found: Found) -> dict[tuple[str, str], Setting]:
    """Who can take part, at which settings; into `found` too, with who cannot and why."""
    cores = len(os.sched_getaffinity(0))
    swept = settings.load()
    chosen = {}
    for name in dict.fromkeys((*wanted.peers, *wanted.once)):
        peer = PEERS[name]
        if why := envs.missing(peer):
            for model in wanted.models:
                found.note(name, model, 0, f"skipped: {why}")
            continue
        found.peers[name] = {"title": peer.title, "version": envs.version(peer), "settings": {}}
        for model in MODELS:
            setting, origin = settings.chosen(swept, name, model, wanted.device, cores, peer.start)
            chosen[name, model] = setting
            found.peers[name]["settings"][model] = {**asdict(setting), "origin": origin}
    return chosen


def schedule(wanted: Wanted, usable: Iterable[str], round_: int) -> Iterator[tuple[str, str]]:
    """The turns of a round: (model, peer). References, which have no model, come once a round."""
    for model in wanted.models:
        for name in usable:
            is_again = round_ > 0 and name not in wanted.peers
            is_twin = model != wanted.models[0] and not PEERS[name].has_model
            if not is_again and not is_twin:
                yield model, name


def turn(
    peer: Peer,
    model: str,
    setting: Setting,
    wanted: Wanted,
    envs: Envs,
    asked: Mapping[str, Questions],
    round_: int,
) -> list[Cell]:
    """One server, from its start to its end."""
    of_model = asked[model if peer.has_model else "echo"]
    with ready(peer, model, wanted.device, setting, envs, of_model, wanted.patience_s) as wrk:
        measure(replace(wrk, patience_s=0.0), [WARM], round_)
        return measure(wrk, wanted.plan, round_)


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
