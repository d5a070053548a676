"""One model of the scaling benchmark: bare loops beside pools with local clients, in turns."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.load.heads import DIFFERING
from bench.scaling.figures import Clock, Figures
from bench.scaling.pool import Pool, batches_between
from bench.scaling.workloads import WORKLOADS, Workload
from bench.support.children import Child, together

_BARE_SHARE = 0.6  # a bare loop's figure settles sooner than a pool's
_BARE = ("bare", "graphs")
_CPU = {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    visible: the GPUs, as CUDA_VISIBLE_DEVICES names them; counts: how many of them at a time,
    ascending; window and rows: 0 is the workload's own; heads: kinds of bench/load/heads.py.
    """

    devices: str
    visible: tuple[str, ...]
    counts: tuple[int, ...]
    batches: tuple[int, ...]
    max_batches: tuple[int, ...]
    clients: int
    client_slots: int
    rounds: int
    seconds: float
    warm_s: float
    profile: bool
    window: int
    rows: int
    frontends: int
    senders: int
    connections: tuple[int, ...]
    rate_per_s: float
    wrk: bool
    heads: tuple[str, ...] = (DIFFERING,)

    @property
    def most(self) -> int:
        return self.counts[-1]

    def workload(self, name: str) -> Workload:
        of = WORKLOADS[name]
        return replace(of, window=self.window or of.window, rows=self.rows or of.rows)

    def bare(self, name: str, i: int, rows: Path) -> Child:
        """The bare model on the i-th device, which is the only one it sees."""
        if self.devices == "cpu":
            return Child("bench.scaling.bare", name, "cpu", str(rows), env=_CPU)
        env = {"CUDA_VISIBLE_DEVICES": self.visible[i]}
        return Child("bench.scaling.bare", name, "cuda:0", str(rows), env=env)

    def pool(self, workload: Workload, n: int, flags: Sequence[str]) -> Pool:
        """A pool with n workers: on the first n GPUs, or all on the CPU."""
        if self.devices == "cpu":
            where = ["--devices", "cpu", "--workers-per-device", str(n)]
            return Pool(workload.import_name, [*flags, *where], _CPU)
        where = ["--devices", ",".join(map(str, range(n)))]
        return Pool(workload.import_name, [*flags, *where])


@dataclass(frozen=True)
class Measure:
    """One figure of a round. way: bare, graphs (bare too), infer, submit or async; size: of its
    batches, at most."""

    way: str
    size: int

    @property
    def what(self) -> str:
        if self.way == "bare":
            return f"bare, batch {self.size}"
        if self.way == "graphs":
            return f"bare with CUDA graphs, batch {self.size}"
        return f"pool, max batch {self.size}, {self.way}"


def measures(settings: Settings, n: int, *, singles: bool) -> list[Measure]:
    """The measurements on n GPUs: everything on the fewest and on the most, else the largest
    batches. A pool comes right after the bare loop it is compared with."""
    most = settings.max_batches[0]
    if n not in (settings.counts[0], settings.most):
        return [Measure("bare", most), Measure("infer", most)]
    found = []
    for size in sorted({*settings.batches, *settings.max_batches}):
        if size in settings.batches:
            found.append(Measure("bare", size))
            if settings.devices == "gpu" and size == most:
                found.append(Measure("graphs", size))
        if size in settings.max_batches:
            found.append(Measure("infer", size))
    if singles:
        found += [Measure("submit", most), Measure("async", most)]
    return found


class Scene:
    """A model's processes: bare loops, pools and clients. All that is needed is started at once."""

    def __init__(self, stack: ExitStack, name: str, settings: Settings, figures: Figures) -> None:
        self._settings = settings
        self._figures = figures
        self._name = name
        self._of = of = settings.workload(name)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rows = folder / "rows.npy"
        np.save(rows, of.make_rows())
        self.todo = {n: measures(settings, n, singles=name == "mlp") for n in settings.counts}
        self._bares = [
            stack.enter_context(settings.bare(name, i, rows)) for i in range(settings.most)
        ]
        self._pools = {
            (n, size): stack.enter_context(settings.pool(of, n, self._flags(size)))
            for n in settings.counts
            for size in settings.max_batches
            if Measure("infer", size) in self.todo[n]
        }
        tolerance = self._learn(folder / "right.npy")
        self._clients = [
            stack.enter_context(
                Child(
                    "bench.scaling.client",
                    *(name, str(rows), str(folder / "right.npy"), repr(tolerance), str(i)),
                )
            )
            for i in range(settings.clients * settings.most)
        ]
        everybody: list[Child | Pool] = [*self._bares, *self._pools.values(), *self._clients]
        for process in everybody:
            stack.callback(process.dismiss)  # all of them before any is waited for
        for pool in self._pools.values():
            pool.await_ready()

    def _flags(self, size: int) -> list[str]:
        slots = min(self._settings.client_slots, self._of.client_slots)
        flags = ["--max-batch", str(size), "--slots", str(size), "--frontends", "1"]
        return [*flags, "--client-slots", str(slots), "--max-clients", "64"]

    def _learn(self, right: Path) -> float:
        """The right answers, from the bare model; returns the tolerance."""
        batches = self._settings.batches
        told = self._bares[0].ask("answers", path=str(right), batches=batches)
        tell_answers(self._figures, self._name, told)
        for bare in self._bares:
            bare.ask("right", path=str(right))
        self._tolerance = float(told["tolerance"])
        return self._tolerance

    # -- measuring --------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Every bare loop and every pool once in the way it will be measured."""
        settings = self._settings
        for n, todo in self.todo.items():
            for measure in todo:
                if measure.way in _BARE:
                    self._loop(n, measure, settings.warm_s / 2)
                else:
                    self._ask_clients(n, measure, settings.warm_s)

    def take(self, n: int, measure: Measure) -> None:
        """One figure; what is told of it beside the rate is the profile."""
        seconds, model = self._settings.seconds, self._name
        if measure.way in _BARE:
            answers = self._loop(n, measure, seconds * _BARE_SHARE)
            wrong = sum(not told["error"] <= self._tolerance for told in answers)
        else:
            answers = self._profiled(n, measure, seconds)
            wrong = sum(told["wrong"] for told in answers)
        rate = sum(told["rows"] / told["took_s"] for told in answers)
        self._figures.add(model, n, f"{measure.what}: rows/s", rate)
        worst = max(told["error"] for told in answers)
        self._figures.judged(model, wrong, f"{measure.what}, largest error {worst:.3g}")

    def _loop(self, n: int, measure: Measure, seconds: float) -> list[dict[str, Any]]:
        graphs = measure.way == "graphs"
        return together(self._bares[:n], "loop", seconds, n=measure.size, graphs=graphs)

    def _profiled(self, n: int, measure: Measure, seconds: float) -> list[dict[str, Any]]:
        if not self._settings.profile:
            return self._ask_clients(n, measure, seconds)
        pool = self._pools[n, measure.size]
        shares: dict[str, float] = {}
        before = pool.counts()
        answers = self._ask_clients(
            n, measure, seconds, lambda start_ns: shares.update(pool.shares(start_ns, seconds))
        )
        after = pool.counts()
        shares.pop("frontend", None)  # nobody asks it anything
        shares["client"] = sum(told["cpu"] for told in answers) / len(answers)
        for who, share in shares.items():
            self._add(n, f"{measure.what}: cores, {who}", share)
        for what, value in batches_between(before, after).items():
            self._add(n, f"{measure.what}: {what}", value)
        calls = [told["call_ms"] for told in answers if told["call_ms"] is not None]
        if calls:
            self._add(n, f"{measure.what}: ms a call, median", sum(calls) / len(calls))
        return answers

    def _add(self, n: int, what: str, value: float) -> None:
        self._figures.add(self._name, n, what, value, quiet=True)

    def _ask_clients(
        self, n: int, measure: Measure, seconds: float, meanwhile: Any = lambda start_ns: None
    ) -> list[dict[str, Any]]:
        return together(
            self._clients[: n * self._settings.clients],
            measure.way,
            seconds,
            meanwhile,
            socket=self._pools[n, measure.size].served.socket,
            window=self._of.window,
        )


def tell_answers(figures: Figures, name: str, told: dict[str, Any]) -> None:
    """Prints scale and tolerance of the answers' check: rows too much alike would hide a mix-up."""
    scale, tolerance = told["scale"], told["tolerance"]
    note = {
        "largest value": round(scale, 4),
        "tolerance": float(f"{tolerance:.3g}"),
        "batch sizes differ by": float(f"{told['noise']:.3g}"),
        "two rows differ at least by": float(f"{told['separation']:.3g}"),
    }
    figures.note(f"{name}, answers", note)
    if not told["separation"] > 2 * tolerance:
        figures.judged(name, 1, "the rows' answers are too much alike to tell them apart")


def rounds(settings: Settings, clock: Clock) -> Iterator[int]:
    """The rounds there is time for, at least one."""
    took_s = 0.0
    for number in range(settings.rounds):
        if number and clock.now_s() + took_s > clock.rounds_until_s:
            clock.say(f"time is short: {number} of {settings.rounds} rounds")
            return
        start_s = clock.now_s()
        yield number
        took_s = clock.now_s() - start_s


def run_local(name: str, settings: Settings, figures: Figures, clock: Clock) -> None:
    """All rounds of one model."""
    with ExitStack() as stack:
        clock.say(f"{name}: starting")
        scene = Scene(stack, name, settings, figures)
        clock.say(f"{name}: ready")
        scene.warm_up()
        for number in rounds(settings, clock):
            clock.say(f"{name}: round {number + 1}")
            for n, todo in scene.todo.items():
                for measure in todo:
                    scene.take(n, measure)
            figures.save()
