"""Facts that belong to a figure: the machine, the versions, the command."""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from batchpool.core.compiled import COMPILED

_PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
_PACKAGES = ("batchpool", "numpy", "torch", "uvicorn", "starlette", "uvloop", "httptools")


def stale() -> list[str]:
    """The modules of this checkout that were compiled before they were edited."""
    found = []
    for library in (_PROJECT.parent / "batchpool").rglob("*.so"):
        source = library.with_name(library.name.partition(".")[0] + ".py")
        if not source.exists() or source.stat().st_mtime > library.stat().st_mtime:
            found.append(str(source.relative_to(_PROJECT.parent)))
    return sorted(found)


def complaint() -> str:
    """Advice about the stale modules; empty if there are none."""
    old = ", ".join(stale())
    return old and f"compiled before it was edited: {old}; run make compile or make interpret"


def facts() -> dict[str, Any]:
    """The machine and the versions, as one flat object."""
    if why := complaint():
        raise SystemExit(why)
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": _gpus(),
        "kernel": platform.release(),
        "load_average": round(os.getloadavg()[0], 2),  # of the minute before
        "python": platform.python_version(),
        **{name: version_of(name) for name in _PACKAGES},
        "compiled": COMPILED,
        "command": shlex.join(["python", "-m", *_command()]),
    }


def _command() -> list[str]:
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return [spec.name.removesuffix(".__main__") if spec else sys.argv[0], *sys.argv[1:]]


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _gpus() -> list[str]:
    try:
        found = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return []
    return [line.strip() for line in found.stdout.splitlines() if line.strip()]


def version_of(name: str) -> str:
    """Of a package; ours may run from its tree, uninstalled. "-": there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        told = tomllib.loads(_PROJECT.read_text())["project"]
        return str(told["version"]) if name == told["name"] else "-"


def spread(values: Sequence[float], digits: int = 0) -> dict[str, float]:
    """Median, least and most of several rounds."""
    return {
        "median": round(statistics.median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
        "rounds": len(values),
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank)."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def report(title: str, rows: dict[str, Any], path: str | None) -> None:
    """Print a table and, if asked, save it with the machine's facts as JSON."""
    told = facts()
    print(f"\n{title}")
    print(f"  {told['cpu']}, {told['cores']} cores, {told['gpus'] or 'no GPU'}, {told['kernel']}")
    kind = "compiled" if told["compiled"] else "interpreted"
    print(f"  python {told['python']}, numpy {told['numpy']}, torch {told['torch']}; {kind}")
    print(f"  {told['command']}\n")
    for name, value in rows.items():
        if isinstance(value, dict) and "median" in value:
            text = f"{value['median']:>12,g}   ({value['min']:,g} .. {value['max']:,g})"
        else:
            text = json.dumps(value)
        print(f"  {name:<44} {text}")
    if path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps({"machine": told, "rows": rows}, indent=1) + "\n")
        print(f"\n  saved {path}")
