"""Pictures of what bench.policy saved: p99 and throughput over the load, one line per policy.

    python -m bench.policy.plots FILE.json FOLDER

One PNG for each shape of load and number of workers, one column for each model. Needs the
extra `bench` (matplotlib).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

from bench.policy.loads import PROFILES, SWEPT
from bench.policy.sweep import ADAPTIVE, FIXED_MS, TARGET, Point, fixed

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib import ticker

_PICTURES = ((1, "poisson"), (4, "poisson"), (1, "bursts"), (1, "diurnal"))
_COLOURS = {
    **dict(zip(map(fixed, FIXED_MS), ("#9ecae1", "#6baed6", "#3182bd", "#08519c"), strict=True)),
    ADAPTIVE: "#d94801",
    TARGET: "#238b45",
}


def lines(points: list[Point], targets: list[Any], case: tuple[str, int, str]) -> dict[str, Any]:
    """The points of one panel by policy, in order of load."""
    name, workers, shape = case
    found: dict[str, list[Point]] = {policy: [] for policy in _COLOURS}
    for p in points:
        if (p["profile"], p["workers"], p["shape"]) == case:
            found[p["policy"]].append(p)
    for task in targets:
        if (task["profile"], task["workers"], task["times"]) == (name, workers, "steady"):
            found[TARGET] += [p for p in task["points"] if p["shape"] == shape and p["load"] < 2]
    return {
        policy: sorted(of_policy, key=lambda p: p["load"])
        for policy, of_policy in found.items()
        if of_policy
    }


def picture(saved: dict[str, Any], workers: int, shape: str, path: Path) -> None:
    """One PNG."""
    figure, panels = plt.subplots(2, len(SWEPT), figsize=(13, 5.6), sharex=True)
    for column, profile in enumerate(PROFILES[name] for name in SWEPT):
        case = (profile.name, workers, shape)
        capacity = profile.capacity_per_s(workers)
        for policy, points in lines(saved["points"], saved["targets"], case).items():
            loads = [100 * p["load"] for p in points]
            style: dict[str, Any] = {
                "color": _COLOURS[policy],
                "label": "adaptive with target" if policy == TARGET else policy,
                "marker": "o",
                "markersize": 3,
                "linewidth": 2 if policy in (ADAPTIVE, TARGET) else 1.2,
            }
            panels[0][column].plot(loads, [p["p99_ms"] for p in points], **style)
            panels[1][column].plot(loads, [100 * p["rate"] / capacity for p in points], **style)
        within_ms = 3 * profile.time_ns(profile.max_batch) / 1e6
        panels[0][column].axhline(within_ms, color="#238b45", linestyle=":", linewidth=1)
        panels[0][column].set_yscale("log")
        panels[0][column].yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        panels[0][column].yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        panels[0][column].yaxis.set_minor_formatter(ticker.NullFormatter())
        panels[0][column].set_title(
            f"{profile.name}: {profile.base_ms:.3g} ms + {profile.row_ms:g} ms a row", fontsize=10
        )
        panels[1][column].set_xlabel("offered, % of capacity")
        for row in (0, 1):
            panels[row][column].grid(alpha=0.25)
    panels[0][0].set_ylabel("p99 of the answered, ms")
    panels[1][0].set_ylabel("answered, % of capacity")
    panels[1][0].legend(fontsize=7, loc="lower right")
    several = "1 worker" if workers == 1 else f"{workers} workers"
    figure.suptitle(f"{shape}, {several}; dotted: the target", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=75)
    plt.close(figure)


def main() -> None:
    source, folder = sys.argv[1:]
    saved = json.loads(Path(source).read_text())
    for workers, shape in _PICTURES:
        path = Path(folder) / f"policy_{shape}_x{workers}.png"
        picture(saved, workers, shape, path)
        print(f"{path}: {path.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main()
