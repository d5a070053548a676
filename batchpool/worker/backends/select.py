"""The registry of backends: an entry for each framework of core/frameworks.py.

Importing this module imports no framework; an entry imports its own when it is used.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchpool.core.frameworks import FRAMEWORKS
from batchpool.core.tensors.spec import ModelSpec
from batchpool.model import Model
from batchpool.worker.backends.backend import Backend
from batchpool.worker.backends.cpu import NumpyBackend, TorchCpuBackend
from batchpool.worker.backends.cuda import CudaBackend


@dataclass(frozen=True)
class FrameworkBackend:
    """The worker's side of one framework.

    make: (loaded model, spec, device, max_batch, allowed batch sizes, most elements of each input
    of a batch) -> backend.
    prepare: sets up the process for a device before the model is imported; raises RuntimeError
    where the framework does not see the device. has_cuda: returns whether the framework was built
    with CUDA; raises ImportError where it is not installed. calls: within it a generator's methods
    are called.
    """

    make: Callable[[Model, ModelSpec, str, int, Sequence[int], int], Backend]
    prepare: Callable[[str], None] = lambda device: None
    has_cuda: Callable[[], bool] = lambda: False
    calls: Callable[[], AbstractContextManager[Any]] = nullcontext


def make_backend(
    model: Model,
    spec: ModelSpec,
    device: str,
    max_batch: int,
    batch_sizes: Sequence[int] = (),
    max_elements: int = 0,
) -> Backend:
    """The backend for a loaded model.

    device: "cpu" or "cuda:N". batch_sizes: the sizes that the model allows; () for any up to
    max_batch. max_elements: of each input of a batch, padded; 0 for any number.
    """
    make = BACKENDS[spec.framework].make
    return make(model, spec, device, max_batch, batch_sizes, max_elements)


def prepare_process(spec: ModelSpec, device: str) -> None:
    """Set up this process for models of the spec's framework on a device."""
    BACKENDS[spec.framework].prepare(device)


def calls_context(framework: str) -> Callable[[], AbstractContextManager[Any]]:
    """Makes the context in which the methods of a generator of a framework are called."""
    return BACKENDS[framework].calls


def has_cuda(spec: ModelSpec, extras: str = "") -> bool:
    """True if the spec's framework is installed with CUDA built in.

    extras: those that install all that the model needs; "" for a model of the user's own. Raises
    ImportError with the command to install the framework where it is missing.
    """
    framework = FRAMEWORKS[spec.framework]
    try:
        return BACKENDS[framework.name].has_cuda()
    except ModuleNotFoundError as exc:
        if exc.name != framework.name:
            raise
        if extras:
            raise ImportError(
                f"model {spec.name!r} needs {framework.title}, which is not installed:"
                f" pip install 'batchpool[{extras}]'"
            ) from None
        always = next(known.name for known in FRAMEWORKS.values() if not known.extra)
        raise ImportError(
            f"model {spec.name!r} has framework {framework.name!r}, but {framework.title} is not"
            f' installed; install batchpool[{framework.extra}] or set framework = "{always}"'
        ) from None


def _make_numpy(
    model: Model,
    spec: ModelSpec,
    device: str,
    max_batch: int,
    batch_sizes: Sequence[int],
    max_elements: int,
) -> Backend:
    return NumpyBackend(model)


def _make_torch(
    model: Model,
    spec: ModelSpec,
    device: str,
    max_batch: int,
    batch_sizes: Sequence[int],
    max_elements: int,
) -> Backend:
    if device.startswith("cuda"):
        return CudaBackend(model, spec, device, max_batch, batch_sizes, max_elements)
    return TorchCpuBackend(model, spec)


def _prepare_torch(device: str) -> None:
    """Select the device. torch takes its number of threads from OMP_NUM_THREADS, which is the
    plan's number or the user's."""
    import torch

    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise RuntimeError(
                f"device {device} was asked for, but torch {torch.__version__} sees no CUDA device"
            )
        torch.cuda.set_device(device)


def _torch_without_gradients() -> AbstractContextManager[Any]:
    import torch

    return torch.inference_mode()


def _torch_has_cuda() -> bool:
    """True if torch was built with CUDA, by its module of versions: to import all takes seconds."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    file = Path(found.origin).with_name("version.py")
    if sys.modules.get("torch") is None and file.is_file():
        return runpy.run_path(str(file)).get("cuda") is not None
    import torch

    return torch.version.cuda is not None


BACKENDS = {
    "numpy": FrameworkBackend(_make_numpy),
    "torch": FrameworkBackend(
        _make_torch, _prepare_torch, _torch_has_cuda, _torch_without_gradients
    ),
}
