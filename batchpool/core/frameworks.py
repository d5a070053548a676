"""The frameworks that a model may be written for: facts that need none of them imported.

Adding one takes an entry here, an entry in worker/backends/select.py, and a backend file.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Framework:
    """A library whose arrays a model receives and returns.

    name: the value of `Model.framework`, and the library's import name. title: the library's name
    in messages. platform: the `platform` of the Open Inference Protocol's metadata. extra: the
    extra of the batchpool distribution that installs the library; "" where it is always installed.
    cuda: the library can run on a CUDA device. cuda_graphs: `Model.cuda_graphs` works with it.
    """

    name: str
    title: str
    platform: str
    extra: str = ""
    cuda: bool = False
    cuda_graphs: bool = False


FRAMEWORKS = {
    framework.name: framework
    for framework in (
        Framework(
            "torch",
            title="PyTorch",
            platform="pytorch_batchpool",
            extra="torch",
            cuda=True,
            cuda_graphs=True,
        ),
        Framework("numpy", title="NumPy", platform="numpy_batchpool"),
    )
}
