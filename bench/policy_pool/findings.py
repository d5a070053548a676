"""The results of a part: figures and verdicts, saved after each of them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.policy.verdicts import Verdict
from bench.support.machine import facts


@dataclass(frozen=True)
class Settings:
    """times: of every measuring time, below 1 for a trial. device: what the models that work run
    on, "cuda" or "cpu"."""

    times: float
    device: str

    def seconds(self, usual: float) -> float:
        return max(0.3, usual * self.times)


class Findings:
    """Of one part. Figures may be any JSON."""

    def __init__(self, part: str, folder: Path) -> None:
        self._path = folder / f"policy_pool_{part}.json"
        self._start_s = time.monotonic()
        self._told: dict[str, Any] = {
            "machine": facts(),
            "part": part,
            "complete": False,
            "took_s": 0.0,
            "verdicts": {},
            "rows": {},
        }
        self._save()

    def add(self, name: str, figures: Any) -> None:
        """A row; floats are cut to what can be read."""
        self._told["rows"][name] = figures = _short(figures)
        print(f"[{self._took_s():6.1f} s] {name}: {json.dumps(figures)}", flush=True)
        self._save()

    def judge(self, verdicts: Sequence[Verdict]) -> None:
        """Those without a case say nothing."""
        for verdict in verdicts:
            if verdict.figures:
                self._told["verdicts"][verdict.demand] = verdict.told()
        self._save()

    def end(self) -> None:
        self._told["complete"] = True
        self._save()

    def _took_s(self) -> float:
        return time.monotonic() - self._start_s

    def _save(self) -> None:
        """Whole or not at all: a part may be killed at any time."""
        self._told["took_s"] = round(self._took_s(), 1)
        unfinished = self._path.with_suffix(".new")
        unfinished.write_text(json.dumps(self._told, indent=1) + "\n")
        unfinished.replace(self._path)


def print_verdicts(path: Path) -> bool:
    """Prints the saved results of a part; True if it is complete and every verdict holds."""
    if not path.exists():
        print(f"\n{path.stem}: nothing was saved")
        return False
    told = json.loads(path.read_text())
    print(f"\n{path.stem}: {told['took_s']:g} s{'' if told['complete'] else ', NOT COMPLETE'}")
    for demand, found in told["verdicts"].items():
        print(f"  {'PASS' if found['holds'] else 'FAIL'}  {demand}")
        print(f"        {found['of'] - found['failed']} of {found['of']}; nearest or worst:")
        for text in found["worst"]:
            print(f"        {text}")
    if not told["verdicts"]:
        print("  no verdict")
    return bool(told["complete"]) and all(found["holds"] for found in told["verdicts"].values())


def _short(figures: Any) -> Any:
    if isinstance(figures, dict):
        return {key: _short(value) for key, value in figures.items()}
    if isinstance(figures, list | tuple):
        return [_short(value) for value in figures]
    if isinstance(figures, float):
        return round(figures, 3) if math.isfinite(figures) else None
    return figures
