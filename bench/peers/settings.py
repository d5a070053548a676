"""Settings of a server, and the file that keeps the best ones.

settings.json: {machine: {peer: {model: setting}}}, where a machine is its device and cores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("settings.json")


@dataclass(frozen=True)
class Setting:
    """The settings of a server.

    workers: processes that run the model.  apis: processes (or threads, where it has no
    processes) that speak HTTP.  max_batch: rows.  wait_ms: for company.  variant: what else
    there is to choose (bench/peers/roster.py).
    """

    workers: int = 1
    apis: int = 1
    max_batch: int = 64
    wait_ms: float = 2
    variant: str = ""

    def __str__(self) -> str:
        words = f"{self.workers} x {self.apis}, batch {self.max_batch}, {self.wait_ms:g} ms"
        return f"{words}, {self.variant}" if self.variant else words


Settings = dict[str, dict[str, dict[str, Setting]]]


def machine_name(device: str, cores: int) -> str:
    return f"{device}, {cores} cores"


def load(path: Path = FILE) -> Settings:
    """ValueError: a setting with an unknown key, or one that is no positive number."""
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text())
    return {
        machine: {
            peer: {model: _setting(peer, model, told) for model, told in models.items()}
            for peer, models in peers.items()
        }
        for machine, peers in found.items()
    }


def _setting(peer: str, model: str, told: Mapping[str, Any]) -> Setting:
    try:
        setting = Setting(**told)
    except TypeError as error:
        raise ValueError(f"{FILE.name}: {peer}, {model}: {error}") from None
    if min(setting.workers, setting.apis, setting.max_batch) < 1 or setting.wait_ms < 0:
        raise ValueError(f"{FILE.name}: {peer}, {model}: not a setting: {told}")
    return setting


def save(settings: Settings, path: Path = FILE) -> None:
    """A line a setting, so that a change of one is a change of one line."""
    machines = []
    for machine, peers in sorted(settings.items()):
        blocks = []
        for peer, models in sorted(peers.items()):
            lines = [
                f"   {json.dumps(model)}: {json.dumps(asdict(setting))}"
                for model, setting in sorted(models.items())
            ]
            blocks.append(f"  {json.dumps(peer)}: {{\n" + ",\n".join(lines) + "\n  }")
        machines.append(f" {json.dumps(machine)}: {{\n" + ",\n".join(blocks) + "\n }")
    path.write_text("\n".join(["{", *([",\n".join(machines)] if machines else []), "}"]) + "\n")


def chosen(
    settings: Settings, peer: str, model: str, device: str, cores: int, default: Setting
) -> tuple[Setting, str]:
    """The setting, and where it is from: the sweep of this machine, or nowhere."""
    machine = machine_name(device, cores)
    setting = settings.get(machine, {}).get(peer, {}).get(model)
    return (setting, f"swept on {machine}") if setting else (default, "not swept here")
