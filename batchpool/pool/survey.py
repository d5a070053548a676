"""From a configuration to a plan for this machine: ask the models, the GPUs and the cores."""

from __future__ import annotations

import os
from collections.abc import Mapping

from batchpool.core.config import Config
from batchpool.core.places import socket_path
from batchpool.pool.described import describe
from batchpool.pool.devices import available_cores, gpu_count, visible_devices
from batchpool.pool.plan import Plan, make_plan


def survey(config: Config, env: Mapping[str, str]) -> Plan:
    """The plan for this machine and environment; starts one child process for each model.

    Raises ConfigError and StartError as its parts do.
    """
    socket = socket_path(config.server, env, os.getuid())
    visible = visible_devices(env.get("CUDA_VISIBLE_DEVICES"), gpu_count(path=env.get("PATH")))
    described = [
        describe(model.import_name, env, config.server.load_timeout_s) for model in config.models
    ]
    return make_plan(config, described, visible, available_cores(), socket)
