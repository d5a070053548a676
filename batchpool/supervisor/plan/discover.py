"""From a configuration to a plan for this machine: ask the models, the GPUs and the cores.

At the start the supervisor's process does it itself. For a reload, while it serves, another
process does (cli/reread.py), and the answers travel as a message.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from batchpool.core.config.paths import socket_path
from batchpool.core.config.schema import Config, ModelConfig, ServerConfig
from batchpool.core.errors import StartError
from batchpool.core.layout.segments import VERSION
from batchpool.core.tensors.spec import ModelSpec
from batchpool.supervisor.plan.devices import available_cores, gpu_count, visible_devices
from batchpool.supervisor.plan.plan import Plan, make_plan
from batchpool.supervisor.plan.probe_model import ProbedModel, describe


@dataclass(frozen=True)
class Discovery:
    """What a plan is made of. described: of each model; visible: GPUs, as
    CUDA_VISIBLE_DEVICES names them."""

    config: Config
    described: tuple[ProbedModel, ...]
    visible: tuple[str, ...]
    cores: int

    def plan(self, config: Config, socket: str) -> Plan:
        """The plan. config: this one, or as sockets that were passed have it."""
        return make_plan(config, self.described, self.visible, self.cores, socket)


def observe(config: Config, env: Mapping[str, str]) -> Discovery:
    """Look around; starts one child process for each class. Raises StartError as its parts do."""
    visible = visible_devices(env.get("CUDA_VISIBLE_DEVICES"), gpu_count(path=env.get("PATH")))
    names = [model.import_name for model in config.models]
    found = {
        name: describe(name, env, config.server.load_timeout_s) for name in dict.fromkeys(names)
    }
    described = tuple(found[name] for name in names)
    return Discovery(config, described, tuple(visible), available_cores())


def survey(config: Config, env: Mapping[str, str]) -> Plan:
    """The plan for this machine and environment.

    Raises ConfigError and StartError as its parts do.
    """
    socket = socket_path(config.server, env, os.getuid())
    return observe(config, env).plan(config, socket)


def to_message(found: Discovery) -> dict[str, Any]:
    """A survey as a control message."""
    return {
        "op": "surveyed",
        "made_by": made_by(),
        "server": asdict(found.config.server),
        "models": [asdict(model) for model in found.config.models],
        "described": [
            {"import": model.import_name, "spec": model.spec.to_wire(), "cuda": model.cuda}
            for model in found.described
        ],
        "visible": list(found.visible),
        "cores": found.cores,
    }


def from_message(message: Mapping[str, Any], ours: str) -> Discovery:
    """What `to_message` told; StartError when another batchpool than `ours` wrote it."""
    if message["made_by"] != ours:
        raise StartError(
            f"{message['made_by']} is installed now and the pool runs {ours}: restart the service"
        )
    models = tuple(ModelConfig(**form) for form in message["models"])
    described = tuple(
        ProbedModel(form["import"], ModelSpec.from_wire(form["spec"]), form["cuda"])
        for form in message["described"]
    )
    config = Config(ServerConfig(**message["server"]), models)
    return Discovery(config, described, tuple(message["visible"]), message["cores"])


def made_by() -> str:
    """Which batchpool this is: the processes of one pool must be of the same."""
    try:
        version = metadata.version("batchpool")
    except metadata.PackageNotFoundError:
        version = "(not installed)"
    return f"batchpool {version} (layout {VERSION})"
