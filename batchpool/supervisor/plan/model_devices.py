"""The devices of a model: those that its configuration names, or that "auto" stands for."""

from __future__ import annotations

from collections.abc import Sequence

from batchpool.core.config.schema import ModelConfig
from batchpool.core.errors import ConfigError, StartError
from batchpool.core.frameworks import FRAMEWORKS
from batchpool.core.layout.segments import MODELS_MOST
from batchpool.supervisor.plan.probe_model import ProbedModel


def devices_of(model: ModelConfig, found: ProbedModel, visible: Sequence[str]) -> list[str | None]:
    """The model's devices: values for CUDA_VISIBLE_DEVICES, or [None] for the CPU.

    visible: the GPUs as in CUDA_VISIBLE_DEVICES. Raises StartError for devices that are not there
    or that the model cannot use.
    """
    if model.devices == "cpu":
        return [None]
    if model.devices == "auto":
        return list(visible) if visible and found.cuda else [None]
    who = f"model {model.import_name}: devices = {list(model.devices)}"
    framework = FRAMEWORKS[found.spec.framework]
    if not framework.cuda:
        raise StartError(
            f'{who}: a model with framework "{framework.name}" runs on the CPU;'
            ' expected "auto" or "cpu"'
        )
    if not found.cuda:
        raise StartError(f"{who}: the installed {framework.title} is built without CUDA")
    return [visible[position] for position in _positions(model, visible)]


def check_places(models: Sequence[ModelConfig], visible: Sequence[str]) -> None:
    """Check what can be told of models before they are probed: their number, and that the devices
    are there which their configuration names.

    Raises ConfigError for more than MODELS_MOST, and StartError as `devices_of`.
    """
    if len(models) > MODELS_MOST:
        raise ConfigError(f"{len(models)} models; a pool serves at most {MODELS_MOST}")
    for model in models:
        if not isinstance(model.devices, str):
            _positions(model, visible)


def _positions(model: ModelConfig, visible: Sequence[str]) -> list[int]:
    """The positions that the configuration names. Raises StartError for one that is not there."""
    who = f"model {model.import_name}: devices = {list(model.devices)}"
    if not visible:
        raise StartError(f'{who}: no GPU is visible here; expected "auto" or "cpu"')
    positions = [int(position) for position in model.devices]
    for position in positions:
        if position >= len(visible):
            there = ", ".join(f"{i} ({entry})" for i, entry in enumerate(visible))
            raise StartError(f"{who}: there is no device {position}; visible are {there}")
    return positions
