"""A program of torch.export, from a file that torch.export.save has written.

    pip install 'batchpool[torch]'
    batchpool serve --model exported:net.pt2 --option trust=true

Inputs and outputs are those of the program, with the names of the arguments of its forward method.
The first dimension of each must be the batch, exported as dynamic. Others may be dynamic too: rows
of one batch are padded with zeros to the longest of them. Such a file holds pickles, so it runs
what its author wrote as it is loaded: it needs trust.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import batchpool as bp
from batchpool.models.bounds import AtLeastOne
from batchpool.models.extras import check_trust, extra, file_at

if TYPE_CHECKING:
    import torch

_DTYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
)


class Exported(bp.Model):
    """The inputs of the program [n, ...] -> its outputs [n, ...].

    path: the file. outputs: their names; left out, the keys of a dict that the program returns,
    else "output", or "output_0" and so on. max_dim: most elements of a dynamic dimension whose
    export set no max. cuda_graphs: see `Model`. Raises RuntimeError without torch, ValueError
    without trust and for a program that cannot be served in batches.
    """

    name = "exported"

    def __init__(
        self,
        path: Path,
        outputs: tuple[str, ...] = (),
        max_dim: AtLeastOne = 512,
        cuda_graphs: bool = False,
        trust: bool = False,
    ) -> None:
        self._path, self.cuda_graphs = file_at(path), cuda_graphs
        check_trust(trust, f"{path}, a program of torch.export,")
        self._program = program = self._loaded()
        values = {node.name: node.meta.get("val") for node in program.graph.nodes}
        self._most = {
            symbol: int(bounds.upper) if bounds.upper.is_Integer else max_dim
            for symbol, bounds in program.range_constraints.items()
        }
        signature = program.graph_signature
        # Named as the arguments of forward; parts of a list or dict have their place behind that.
        self.inputs = [self._tensor("input", name, values[name]) for name in signature.user_inputs]
        names = outputs or _output_names(program)
        if len(names) != len(signature.user_outputs):
            raise ValueError(
                f"{len(names)} names of outputs for the {len(signature.user_outputs)} of {path}"
            )
        results = zip(names, signature.user_outputs, strict=True)
        self.outputs = [self._tensor("output", name, values[node]) for name, node in results]

    def load(self, device: str) -> None:
        from torch.export.passes import move_to_device_pass

        if device != "cpu":
            self._program = move_to_device_pass(self._program, device)
        self._module = self._program.module()

    def infer(self, batch: bp.Batch) -> dict[str, torch.Tensor]:
        from torch.utils import _pytree as trees

        rows = [batch[tensor.name] for tensor in self.inputs]
        arguments, named = trees.tree_unflatten(rows, self._program.call_spec.in_spec)
        found = trees.tree_leaves(self._module(*arguments, **named))
        names = [tensor.name for tensor in self.outputs]
        return dict(zip(names, found, strict=True))

    def _loaded(self) -> Any:
        with extra("torch"):
            import torch
        try:
            return torch.export.load(self._path)
        except Exception as error:  # of many kinds: what a file is that is no program
            raise ValueError(
                f"{self._path.absolute()} is no program that torch.export of PyTorch"
                f" {torch.__version__} loads: {error}; a file that torch.export.save has written"
                " was expected, which weights alone, of torch.save, are not"
            ) from error

    def _tensor(self, kind: str, name: str, value: Any) -> bp.Tensor:
        import torch

        what = f"{self._path}: {kind} {name!r}"
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"{what} is {value!r}; a tensor was expected")
        dtype = str(value.dtype).removeprefix("torch.")
        shape: tuple[Any, ...] = tuple(value.shape)
        if dtype not in _DTYPES:
            raise ValueError(f"{what} is of {value.dtype}, which cannot be served")
        if not shape or not isinstance(shape[0], torch.SymInt):
            raise ValueError(
                f"{what} has the shape {list(shape)}, which does not begin with a dynamic batch"
                " dimension; export it with dynamic_shapes={'x': {0: torch.export.Dim('batch')}},"
                " with each input in the place of x"
            )
        return bp.Tensor(name, dtype, tuple(self._dimension(size) for size in shape[1:]))

    def _dimension(self, size: Any) -> int | bp.Dim:
        if isinstance(size, int):
            return size
        return bp.Dim(int(size.node.expr.subs(self._most)), str(size.node.expr))


def _output_names(program: Any) -> list[str]:
    from torch.utils import _pytree as trees

    count = len(program.graph_signature.user_outputs)
    made = trees.tree_unflatten(list(range(count)), program.call_spec.out_spec)
    if isinstance(made, dict) and len(made) == count:
        return [str(key) for key in made]
    return ["output"] if count == 1 else [f"output_{number}" for number in range(count)]
