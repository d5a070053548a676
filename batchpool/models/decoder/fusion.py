"""The small kernels of a model's layers, fused by torch.compile.

A decoder's own code starts some forty kernels a layer, most of which read and write a few tokens:
norms, rotations, activations, sums. Compiled, those between two products of matrices are one. What
is compiled is each layer's code once for all layers and numbers of tokens, so that it takes seconds
and not minutes. Attention and cache stay as they are.

    https://docs.pytorch.org/tutorials/recipes/regional_compilation.html
"""

from __future__ import annotations

import torch

BACKEND = "inductor"
_VARIANTS = 8  # of the code of a layer: numbers of tokens of which the compiler knows something


def fuse(model: torch.nn.Module, layers: int, backend: str = BACKEND) -> None:
    """Compile the layers of a model, of which it has so many; the compiler runs at their first
    calls. ValueError: where they are is not to be seen."""
    found = [
        module
        for module in model.modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == layers
    ]
    if not found:
        raise ValueError(f"{type(model).__name__} has no list of its {layers} layers")
    settings = torch._dynamo.config
    # The number of a layer is read by its code; a variable, else each layer would be compiled.
    settings.allow_unspec_int_on_nn_module = True
    settings.recompile_limit = max(settings.recompile_limit, _VARIANTS * layers)
    settings.accumulated_recompile_limit = max(
        settings.accumulated_recompile_limit, _VARIANTS * _VARIANTS * layers
    )
    for layer in found[0]:
        layer.compile(dynamic=True, backend=backend)
