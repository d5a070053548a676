"""The figures of the scaling benchmark: collected one by one, saved all along."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from bench.support.machine import facts, report, spread

TITLE = "The pool beside the bare loop, by number of GPUs"
_PER_S = ": rows/s"


class Clock:
    """Time since the start, for progress lines; and until when another round may begin."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self.rounds_until_s = float("inf")

    def now_s(self) -> float:
        return time.monotonic() - self._start_s

    def say(self, text: str) -> None:
        print(f"[{self.now_s():6.1f} s] {text}", flush=True)


class Figures:
    """Series of figures by (model, number of GPUs, what), and what went wrong.

    A series has a figure a round; those of one round were taken one right after another.
    """

    def __init__(self, clock: Clock, path: str | None, unit: str) -> None:
        self._clock = clock
        self._path = path
        self._unit = unit
        self._machine = facts()
        self._series: dict[tuple[str, int, str], list[float]] = {}
        self._notes: dict[str, Any] = {}
        self.wrong = 0
        self.failed: dict[str, str] = {}

    def add(self, model: str, n: int, what: str, value: float, *, quiet: bool = False) -> None:
        self._series.setdefault((model, n, what), []).append(value)
        if not quiet:
            self._clock.say(f"{self._name(model, n)}, {what} {value:,.6g}")

    def note(self, name: str, value: Any) -> None:
        self._notes[name] = value
        self._clock.say(f"{name}: {json.dumps(value)}")

    def judged(self, model: str, wrong: int, text: str) -> None:
        """wrong answers are counted and told; they make the whole run fail in the end."""
        if wrong:
            self.wrong += wrong
            self.note(f"WRONG ANSWERS {len(self._notes)}, {model}", f"{wrong}: {text}")

    def _name(self, model: str, n: int) -> str:
        return f"{model}, {n} {self._unit}{'' if n == 1 else 's'}"

    def rows(self) -> dict[str, Any]:
        """All that is known now, ratios included."""
        rows: dict[str, Any] = dict(self._notes)
        for (model, n, what), values in self._series.items():
            digits = 0 if min(values) >= 1000 else 1 if min(values) >= 100 else 3
            rows[f"{self._name(model, n)}, {what}"] = spread(values, digits)
        for (model, n, what), values in self._series.items():
            if what.startswith("pool, max batch ") and what.endswith(f"infer{_PER_S}"):
                size = what.split()[3].rstrip(",")
                bare = self._series.get((model, n, f"bare, batch {size}{_PER_S}"))
                if bare:
                    name = f"{self._name(model, n)}, max batch {size}: pool / bare"
                    rows[name] = _ratio(values, bare)
        for (model, n, what), values in self._series.items():
            least = min(m for name, m, _ in self._series if name == model)
            one = self._series.get((model, least, what))
            if n > least and one and what.endswith(_PER_S):
                plain = what.removesuffix(_PER_S)
                rows[f"{model}, {plain}: {n} {self._unit}s / {least}"] = _ratio(values, one)
        for name, text in self.failed.items():
            rows[f"FAILED: {name}"] = text
        return rows

    def save(self) -> None:
        """Write what there is; a later failure loses nothing of it."""
        if self._path:
            path = Path(self._path)
            path.parent.mkdir(parents=True, exist_ok=True)
            told = {"machine": self._machine, "rows": self.rows()}
            beside = path.with_suffix(".new")
            beside.write_text(json.dumps(told, indent=1) + "\n")
            beside.replace(path)

    def report(self) -> None:
        report(TITLE, self.rows(), self._path)


def _ratio(over: list[float], under: list[float]) -> dict[str, float]:
    """Round by round; a round that was cut short has no partner."""
    return spread([a / b for a, b in zip(over, under, strict=False)], 3)
