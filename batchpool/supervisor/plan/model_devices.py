"""The devices of a model: those that its configuration names, or that "auto" stands for."""

from __future__ import annotations

from collections.abc import Sequence

from batchpool.core.config.schema import ModelConfig
from batchpool.core.errors import StartError
from batchpool.core.frameworks import FRAMEWORKS
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
    if not visible:
        raise StartError(f"{who}: no GPU is visible here")
    chosen: list[str | None] = []
    for position in model.devices:
        assert isinstance(position, int)
        if position >= len(visible):
            there = ", ".join(f"{i} ({entry})" for i, entry in enumerate(visible))
            raise StartError(f"{who}: there is no device {position}; visible are {there}")
        chosen.append(visible[position])
    return chosen
