"""Discovery: the configuration, its probed models, and the devices of this machine.

At the start the supervisor's process discovers these itself. For a reload, while it serves, a child
process does (`batchpool/cli/discovery.py`) and sends the result as a message.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata

from batchpool.control.process_messages import ConfigurationRead, Discovered, ProbedForm
from batchpool.core.config.paths import socket_path
from batchpool.core.config.ready_models import READY_MODELS
from batchpool.core.config.schema import Config, ModelConfig
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import StartError
from batchpool.core.layout.segments import VERSION
from batchpool.core.tensors.spec import ModelSpec
from batchpool.supervisor.plan.credentials import check_credentials
from batchpool.supervisor.plan.devices import available_cores, gpu_count, visible_devices
from batchpool.supervisor.plan.model_devices import check_places
from batchpool.supervisor.plan.plan import Plan, make_plan
from batchpool.supervisor.plan.probe_model import ProbedModel, check_ready_options, probe_model


@dataclass(frozen=True)
class Discovery:
    """The input of a plan.

    described: each model of the configuration, probed. visible: GPUs as in CUDA_VISIBLE_DEVICES.
    cores: CPU cores that the pool may use.
    """

    config: Config
    described: tuple[ProbedModel, ...]
    visible: tuple[str, ...]
    cores: int

    def plan(self, config: Config, socket: str) -> Plan:
        """Make the plan. config: the configuration, changed by sockets that systemd passed."""
        return make_plan(config, self.described, self.visible, self.cores, socket)


def discover(config: Config, env: Mapping[str, str]) -> Discovery:
    """Probe the models and find the devices; starts a child process for each model class, and for
    each model whose tensors may be its own. The options of the result have the class's types.

    Raises StartError if a model cannot be probed or CUDA_VISIBLE_DEVICES is wrong, and ConfigError
    for options or a declaration that a model cannot have and a file of keys that cannot be read.
    """
    check_credentials(config.server)
    visible = visible_devices(env.get("CUDA_VISIBLE_DEVICES"), gpu_count(path=env.get("PATH")))
    timeout_s = config.server.load_timeout_s
    check_places(config.models, visible)
    ready = [model for model in config.models if model.import_name in READY_MODELS.values()]
    if ready and len(config.models) > 1:  # the probe of a single one checks its options first
        check_ready_options(ready, env, timeout_s)
    described = _probed(config.models, env, timeout_s)
    models = tuple(
        replace(model, options=found.options)
        for model, found in zip(config.models, described, strict=True)
    )
    config = replace(config, models=models)
    return Discovery(config, tuple(described), tuple(visible), available_cores())


def _probed(
    models: Sequence[ModelConfig], env: Mapping[str, str], timeout_s: float
) -> list[ProbedModel]:
    """Each model, probed; those of users' classes first, whose options nobody has checked yet."""
    classes: dict[str, ProbedModel] = {}
    described: dict[int, ProbedModel] = {}
    ready = READY_MODELS.values()
    for number, model in sorted(enumerate(models), key=lambda each: each[1].import_name in ready):
        known = classes.get(model.import_name)
        if known is None or not known.of_class or model.options or not model.name:
            known = classes[model.import_name] = probe_model(model, env, timeout_s)
        described[number] = known
    return [described[number] for number in range(len(models))]


def configuration_read(config: Config) -> ConfigurationRead:
    """The message by which a pool that serves can refuse a configuration before its models are
    probed."""
    return ConfigurationRead(made_by(), asdict(config.server), available_cores())


def discover_plan(config: Config, env: Mapping[str, str]) -> Plan:
    """The plan of a configuration for this machine and environment.

    Raises ConfigError and StartError as `discover` and `make_plan` do.
    """
    socket = socket_path(config.server, env, os.getuid())
    found = discover(config, env)
    return found.plan(found.config, socket)


def to_message(found: Discovery) -> Discovered:
    """A discovery as a control message."""
    return Discovered(
        made_by=made_by(),
        server=asdict(found.config.server),
        models=tuple(asdict(model) for model in found.config.models),
        probed=tuple(
            ProbedForm(model.import_name, model.spec.to_wire(), model.cuda, model.options)
            for model in found.described
        ),
        visible=found.visible,
        cores=found.cores,
    )


def from_message(message: Discovered, ours: str) -> Discovery:
    """The discovery in a message; StartError when another batchpool than `ours` wrote it."""
    check_made_by(message, ours)
    models = tuple(ModelConfig(**form) for form in message.models)
    described = tuple(
        ProbedModel(form.import_name, ModelSpec.from_wire(form.spec), form.cuda, form.options)
        for form in message.probed
    )
    config = Config(ServerConfig(**message.server), models)
    return Discovery(config, described, message.visible, message.cores)


def check_made_by(message: ConfigurationRead | Discovered, ours: str) -> None:
    """Raise StartError when another batchpool than `ours` wrote a message."""
    if message.made_by != ours:
        raise StartError(
            f"{message.made_by} is installed now and the pool runs {ours}: restart the service"
        )


def made_by() -> str:
    """Version and layout of this batchpool, which are the same in all processes of a pool."""
    try:
        version = metadata.version("batchpool")
    except metadata.PackageNotFoundError:
        version = "(not installed)"
    return f"batchpool {version} (layout {VERSION})"
