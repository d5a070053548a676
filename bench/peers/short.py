"""`short`: a sweep, rounds and an open loop within a time, where a machine is there for minutes.

The sweep tries less than `sweep` does, each setting once, and ends when its share of the time is
spent; what counts is the highest rate at any of its loads. Rounds are begun while a whole one
still fits, in turns forwards and backwards. Whether the load keeps to cores of its own is tried
too: it does if that suits each of the first two. What was found is saved after every server, the
best settings beside it.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.peers import settings
from bench.peers.load import Cell, Questions, measure, questions
from bench.peers.offered import offered, senders
from bench.peers.roster import OURSELVES, PEERS
from bench.peers.rounds import TRIES, Found, bare_rates, take, usable
from bench.peers.server import GaveUp
from bench.peers.settings import Setting
from bench.peers.stage import Stage
from bench.peers.sweep import attempt, best, values_of
from bench.support.machine import facts

SWEEP_SHARE = 0.36  # of the time, for all peers together
_START_S = 90.0  # that a server may take; the first one reads torch from the disk
_BARE_S = 25.0  # with the import of torch
_HANGS_S = 45.0  # beyond its time all is given up
_AGAIN_S = 10.0  # the end of a server is not interrupted, what follows is
_ALONE = 1  # a connection, for the latency
_MANY = 1024  # connections; with more it takes a while until all are there
_MUCH_MORE = 1.5  # a server gets the open loop if it answered so much more than is offered


class TooLate(Exception):
    """The time is over, and more."""


@dataclass(frozen=True)
class Wanted:
    """The arguments of `short`. pin: "yes", "no" or "auto". sweep_share: of limit_s."""

    peers: Sequence[str]
    model: str
    device: str
    connections: Sequence[int]
    swept: Sequence[int]
    seconds: int
    rounds: int
    offered_per_s: float
    pin: str
    limit_s: float
    sweep_share: float = SWEEP_SHARE

    @property
    def plan(self) -> list[tuple[int, int]]:
        """Connections and seconds."""
        seconds = [self.seconds * (2 if n > _MANY else 1) for n in self.connections]
        return [(_ALONE, 1), *zip(self.connections, seconds, strict=True)]


def grid_of(name: str, cores: int) -> tuple[Setting, Mapping[str, tuple[Any, ...]]]:
    """Where a sweep starts, and what it tries."""
    grid: dict[str, tuple[Any, ...]]
    few, some, half = (max(1, cores * n // 8) for n in (2, 3, 4))
    if name == OURSELVES:
        apis = (few, some, half, max(1, few // 2))
        grid = {"apis": apis, "wait_ms": (1, 0, 4), "workers": (1, 2), "max_batch": (256, 128, 512)}
        return Setting(1, few, 256, 1), grid
    if name == "mosec":
        grid = {"workers": (few, max(1, few // 2), some, half)}
        return Setting(few, 1, 64, 1), grid | {"max_batch": (64, 128, 256), "wait_ms": (1, 2)}
    if name == "litserve":
        start = Setting(1, half, 64, 2, "queue")
        many = (half, few, max(1, cores * 6 // 8))
        variants = ("queue", "fast queue")
        grid = {"apis": many, "variant": variants, "workers": (1, 2), "max_batch": (64, 256)}
        return start, grid
    if name == "pytriton":  # threads of one process run the model
        grid = {"workers": (1, 2, 4), "max_batch": (256, 64), "apis": (half, few)}
        return Setting(1, half, 256, 1), grid | {"wait_ms": (1, 5)}
    return PEERS[name].start, PEERS[name].grid


@dataclass
class Short:
    """One such run. told: called whenever there is something new to save."""

    wanted: Wanted
    stage: Stage
    found: Found
    asked: Questions
    told: Callable[[Found], None]
    start_s: float
    best: dict[str, Setting] = field(default_factory=dict)
    rate: dict[str, float] = field(default_factory=dict)  # the most that a sweep saw

    @property
    def cores(self) -> int:
        return int(self.found.machine["cores"])

    def passed_s(self) -> float:
        return time.monotonic() - self.start_s

    def say(self, text: str) -> None:
        print(f"[{self.passed_s():5.0f} s] {text}", flush=True)

    # -- the best setting ---------------------------------------------------------------------

    def sweep(self) -> None:
        names = list(usable(self.found, self.stage.envs, self.wanted.peers, [self.wanted.model]))
        for number, name in enumerate(names):
            spent_s = self.passed_s()
            until_s = self.wanted.sweep_share * self.wanted.limit_s
            self._sweep(name, spent_s + (until_s - spent_s) / (len(names) - number))
            self.told(self.found)

    def _sweep(self, name: str, until_s: float) -> None:
        model, (setting, grid) = self.wanted.model, grid_of(name, self.cores)
        peer = replace(PEERS[name], grid=grid)
        scores: dict[Setting, float] = {}
        for key in grid:
            values = dict.fromkeys(values_of(peer, key, self.cores))
            of = {value: replace(setting, **{key: value}) for value in values}
            for one in of.values():
                if one not in scores and (self.passed_s() < until_s or not scores):
                    scores[one] = self._attempt(name, one)
            known = {value: scores[one] for value, one in of.items() if one in scores}
            if any(known.values()):
                setting = of[best(key, known)]
        if not any(scores.values()):
            self.found.note(name, model, 0, "no setting of the sweep works")
            return
        self.best[name] = setting
        origin = f"swept on {settings.machine_name(self.wanted.device, self.cores)}"
        self.found.peers[name]["settings"][model] = {**asdict(setting), "origin": origin}
        self.say(f"{name}: BEST {setting}")

    def _attempt(self, name: str, setting: Setting) -> float:
        of = self.stage, PEERS[name], self.wanted.model, setting, self.asked, 1
        self.found.tried.append(attempt(*of, self.wanted.swept))
        most = float(max(self.found.tried[-1]["rates"]))
        self.rate[name] = max(self.rate.get(name, 0.0), most)
        return most

    # -- cores ----------------------------------------------------------------------------------

    def split(self) -> None:
        """Fix who gets which cores."""
        pinned = self.wanted.pin == "yes"
        if self.wanted.pin == "auto":
            gains = [self._gain(name) for name in list(self.best)[:2]]
            pinned = bool(gains) and min(gains) > 1.0
        split = replace(self.stage.split, pinned=pinned)
        self.stage = replace(self.stage, split=split)
        self.found.machine["wrk"] = str(split)
        self.say(f"wrk: {self.found.machine['wrk']}")
        self.told(self.found)

    def _gain(self, name: str) -> float:
        """By cores of its own for the load, geometric mean; 0 if it cannot be told."""
        free = self.stage.split
        rates: dict[bool, list[float]] = {False: [], True: []}
        try:
            of = PEERS[name], self.wanted.model, self.best[name], self.asked
            with self.stage.ready(*of) as wrk:
                self.stage.warm_up(wrk)
                for pinned in (False, True, True, False):
                    split = replace(free, pinned=pinned)
                    plan = [(n, 1) for n in self.wanted.swept]
                    one = replace(wrk, split=split, heads=wrk.heads[:1])
                    cells = measure(one, plan, 0)
                    rates[pinned] += [cell.rate for cell in cells]
        except (GaveUp, ValueError) as reason:
            self.say(f"{name}: {reason}")
            return 0.0
        gain = statistics.geometric_mean(rates[True]) / statistics.geometric_mean(rates[False])
        self.found.tried.append({"peer": name, "pinned": rates[True], "free": rates[False]})
        self.say(f"{name}: {gain:.3f} times as fast where wrk has cores of its own")
        return gain

    # -- rounds ---------------------------------------------------------------------------------

    def rounds(self) -> None:
        longest_s = 0.0
        for round_ in range(self.wanted.rounds):
            start_s = self.passed_s()
            if start_s + longest_s > self.wanted.limit_s:
                self.say(f"no time for a round after {round_}")
                return
            for name in list(self.best)[:: -1 if round_ % 2 else 1]:
                if self.found.failures(name, self.wanted.model) < TRIES:
                    self.say(f"round {round_ + 1}, {name}")
                    take(self.found, name, self.wanted.model, round_, self._turn(name, round_))
                    self.told(self.found)
            longest_s = max(longest_s, self.passed_s() - start_s)

    def _turn(self, name: str, round_: int) -> Iterator[Cell]:
        of = PEERS[name], self.wanted.model, self.best[name], self.asked
        with self.stage.ready(*of) as wrk:
            self.stage.warm_up(wrk, round_)
            yield from measure(wrk, self.wanted.plan, round_)
            rate_per_s = self.wanted.offered_per_s
            if self.rate[name] < _MUCH_MORE * rate_per_s:
                return
            with senders(wrk) as children:
                told = offered(wrk, children, rate_per_s, self.wanted.seconds, round_)
            self.found.offered.append(told)
            shown = f"p50 {told['p50_ms']:.2f} ms, p99 {told['p99_ms']:.2f} ms"
            print(f"  {rate_per_s:,.0f}/s offered: {shown}", end="", flush=True)

    def bare(self) -> None:
        if self.wanted.model == "mlp" and self.passed_s() + _BARE_S < self.wanted.limit_s:
            try:
                rates = bare_rates("mlp", self.wanted.device, self.stage.envs)
            except subprocess.CalledProcessError as error:
                self.say(f"the bare model: {error.stderr.strip()[-300:]}")
                return
            self.found.bare["mlp"] = [rates]
            self.told(self.found)


def short(wanted: Wanted, stage: Stage, out: Path) -> Found:
    """Everything, and into `out`: peers.json and settings.json."""
    start_s = time.monotonic()
    most = max(wanted.connections)
    stage = replace(stage, most=most, warm=(min(64, most), 1), start_s=_START_S)
    stage.envs.wrk()
    told_of = {**asdict(wanted), "models": [wanted.model]}
    found = Found(facts(), told_of)

    def save(found: Found) -> None:
        found.save(str(out / "peers.json"))

    asked = questions(wanted.model, wanted.device)
    run = Short(wanted, stage, found, asked, save, start_s)
    try:
        with alarm(wanted.limit_s + _HANGS_S):
            run.sweep()
            _save_settings(run, out / "settings.json")
            run.split()
            run.rounds()
            run.bare()
    except TooLate:
        run.say("given up: the time is over")
    save(found)
    return found


def _save_settings(run: Short, path: Path) -> None:
    kept = settings.load()
    of_machine = kept.setdefault(settings.machine_name(run.wanted.device, run.cores), {})
    for name, setting in run.best.items():
        of_machine.setdefault(name, {})[run.wanted.model] = setting
    settings.save(kept, path)


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """TooLate, wherever it is then."""

    def ring(number: int, frame: object) -> None:
        raise TooLate

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
