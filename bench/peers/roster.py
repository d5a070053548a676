"""The servers that take part: the start, the protocol and the swept settings of each."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.peers.forms import JSON, OURS, RAW, TRITON, Form
from bench.peers.settings import Setting

SERVERS = Path(__file__).with_name("servers")
MODELS = ("affine", "mlp")
OURSELVES = "batchpool"
_OUR_MODELS = {"affine": "bench.support.models:Affine", "mlp": "batchpool.examples.mlp:MLP"}


@dataclass(frozen=True)
class Peer:
    """title: in the table.  script: of bench/peers/servers.  env: the name of its virtual
    environment; empty: the interpreter that runs this.  package: whose version is told.
    grid: what a sweep tries, each key in turn."""

    name: str
    title: str
    package: str = ""
    script: str = ""
    env: str = ""
    path: str = "/infer"
    form: Form = RAW
    start: Setting = field(default_factory=Setting)
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    has_model: bool = True
    needs: tuple[str, ...] = ()  # programs


_COUNTS = (1, 2, 4, 8)
_BATCHES = (64, 128, 256)
_WAITS_MS = (1, 2, 5)

PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            OURSELVES,
            "batchpool",
            package="batchpool",
            path="/v2/models/{model}/infer",
            form=OURS,
            grid={
                "apis": _COUNTS,
                "workers": _COUNTS,
                "max_batch": _BATCHES,
                "wait_ms": (0, *_WAITS_MS),
            },
        ),
        Peer(
            "mosec",
            "Mosec",
            package="mosec",
            script="serve_mosec.py",
            env="mosec",
            grid={"workers": _COUNTS, "max_batch": _BATCHES, "wait_ms": _WAITS_MS},
        ),
        Peer(
            "litserve",
            "LitServe",
            package="litserve",
            script="serve_litserve.py",
            env="litserve",
            start=Setting(apis=2, variant="queue"),
            grid={
                "apis": _COUNTS,
                "variant": ("fast queue", "queue"),
                "workers": _COUNTS,
                "max_batch": _BATCHES,
                "wait_ms": (0, *_WAITS_MS),
            },
        ),
        Peer(
            "pytriton",
            "PyTriton",
            package="nvidia-pytriton",
            script="serve_pytriton.py",
            env="pytriton",
            path="/v2/models/{model}/infer",
            form=TRITON,
            start=Setting(apis=2),
            grid={
                "workers": _COUNTS,
                "apis": (2, 8),
                "max_batch": _BATCHES,
                "wait_ms": (0, *_WAITS_MS),
            },
        ),
        Peer(
            "torchserve",
            "TorchServe",
            package="torchserve",
            script="serve_torchserve.py",
            env="torchserve",
            path="/predictions/{model}",
            grid={
                "workers": _COUNTS,
                "apis": _COUNTS,
                "max_batch": _BATCHES,
                "wait_ms": _WAITS_MS,
            },
            needs=("java",),
        ),
        Peer(
            "bentoml",
            "BentoML, JSON",
            package="bentoml",
            script="serve_bentoml.py",
            env="bentoml",
            form=JSON,
            grid={"workers": _COUNTS, "max_batch": (64, 256)},
        ),
        Peer(
            "ray",
            "Ray Serve",
            package="ray",
            script="serve_ray.py",
            env="ray",
            start=Setting(variant="throughput"),
            grid={
                "variant": ("throughput", "default"),
                "workers": _COUNTS,
                "max_batch": (64, 256),
                "wait_ms": (0, 2, 10),
            },
        ),
        Peer(
            "uvicorn",
            "uvicorn, no model",
            package="uvicorn",
            script="serve_echo.py",
            has_model=False,
            start=Setting(variant="uvicorn"),
        ),
        Peer(
            "starlette",
            "Starlette, no model",
            package="starlette",
            script="serve_echo.py",
            has_model=False,
            start=Setting(variant="starlette"),
        ),
    )
}
IN_TURNS = ("batchpool", "mosec", "litserve", "pytriton", "torchserve", "uvicorn", "starlette")
INSTALLED = tuple(name for name, peer in PEERS.items() if peer.env)


def in_flight(connections: int) -> int:
    """Requests that a server must be willing to hold: a power of two, so that a lane of ours that
    gets more than its share of the connections is not full at nine tenths."""
    return max(4096, 1 << (2 * connections - 1).bit_length())


def command(peer: Peer, python: Path, plan: Mapping[str, Any]) -> list[str]:
    """The command that starts it. A peer's script finds the rest in its plan (servers/plan.py)."""
    if peer.name != OURSELVES:
        return [str(python), str(SERVERS / peer.script)]
    flags = {
        "--model": _OUR_MODELS[plan["model"]],
        "--port": plan["ports"][0],
        "--socket": f"{plan['folder']}/pool.sock",
        "--state-dir": plan["folder"],
        "--devices": "0" if plan["device"] == "cuda" and plan["model"] == "mlp" else "cpu",
        "--frontends": plan["apis"],
        "--workers-per-device": plan["workers"],
        "--max-batch": plan["max_batch"],
        "--max-wait-ms": plan["wait_ms"],
        "--slots": plan["in_flight"],
        "--log-level": "warning",
    }
    told = [str(word) for flag in flags.items() for word in flag]
    return [sys.executable, "-m", "batchpool", "serve", *told]
