"""The shapes for which a model's call is captured as CUDA graphs.

A graph works on memory of one shape. Where rows vary in a dynamic dimension, the call is captured
for some sizes of it, and a batch is padded to the next larger one of its longest row: by default
powers of two from 16 to the dimension's maximum, which are also what the batcher keeps apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from batchpool.core.errors import ConfigError
from batchpool.core.scheduler.batch_sizes import doubling_sizes, padded_size
from batchpool.core.scheduler.element_budget import rows_within
from batchpool.core.scheduler.size_buckets import SHARED_SIZES_MOST
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor


def checked_graph_sizes(
    spec: ModelSpec, given: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int, ...]]:
    """The sizes to capture by name of a dynamic dimension, as `Model.graph_sizes` says.

    Raises ConfigError for a name that no input's dimension has, and for sizes that do not rise or
    do not end with the dimension's maximum.
    """
    most = {dim.name: dim.max for tensor in spec.inputs for dim in _dims(tensor) if dim.name}
    for name, sizes in given.items():
        if name not in most:
            known = ", ".join(map(repr, most)) or "none"
            raise ConfigError(
                f"model {spec.name!r}: graph_sizes names {name!r}; the named dynamic"
                f" dimensions of its inputs are: {known}"
            )
        rises = all(a < b for a, b in itertools.pairwise((0, *sizes)))
        if not rises or not sizes or sizes[-1] != most[name]:
            raise ConfigError(
                f"model {spec.name!r}: graph_sizes has {name!r}: {list(sizes)}; whole"
                f" numbers that rise to the dimension's maximum, {most[name]}, were expected"
            )
    return {name: tuple(sizes) for name, sizes in given.items()}


def dimension_sizes(most: int) -> tuple[int, ...]:
    """The default: powers of two from 16 up to `most`, and `most`."""
    return doubling_sizes(SHARED_SIZES_MOST, most)


class GraphShapes:
    """The shapes of the dynamic inputs of a model.

    names: of these inputs. max_elements: of each input of a batch, padded; 0 for any number.
    """

    def __init__(
        self, spec: ModelSpec, given: Mapping[str, Sequence[int]], max_elements: int = 0
    ) -> None:
        known = checked_graph_sizes(spec, given)
        self._inputs = {tensor.name: tensor for tensor in spec.inputs if tensor.dynamic}
        self.names = tuple(self._inputs)
        self._max_elements = max_elements
        fixed = [math.prod(tensor.max_shape) for tensor in spec.inputs if not tensor.dynamic]
        self._largest_fixed = max(fixed, default=1)
        self._sizes = {
            name: [known.get(dim.name) or dimension_sizes(dim.max) for dim in _dims(tensor)]
            for name, tensor in self._inputs.items()
        }

    def dynamic(self, name: str) -> tuple[int, ...]:
        """The positions of an input's dynamic dimensions in its row shape."""
        return self._inputs[name].dynamic

    def padded(self, name: str, shape: Sequence[int]) -> tuple[int, ...]:
        """The row shape to which rows of this shape are padded."""
        padded = list(shape)
        for at, sizes in zip(self._inputs[name].dynamic, self._sizes[name], strict=True):
            padded[at] = padded_size(sizes, shape[at])
        return tuple(padded)

    def most_rows(self, shapes: Mapping[str, Sequence[int]], max_batch: int) -> int:
        """The most rows that a batch of these row shapes, by dynamic input, can have."""
        largest = max([self._largest_fixed, *map(math.prod, shapes.values())])
        return rows_within(self._max_elements, largest, max_batch)

    def all_rows(self) -> Iterator[dict[str, tuple[int, ...]]]:
        """Every combination of row shapes, by input; the longest come first, so that the memory
        that the first one takes serves the others. Dimensions of one name have one size."""
        options: dict[object, tuple[int, ...]] = {}
        places: list[tuple[str, int, object]] = []
        for name, tensor in self._inputs.items():
            for at, dim, sizes in zip(
                tensor.dynamic, _dims(tensor), self._sizes[name], strict=True
            ):
                key: object = (dim.name, dim.max) if dim.name else (name, at)
                options[key] = sizes[::-1]
                places.append((name, at, key))
        for chosen in itertools.product(*options.values()):
            by_key = dict(zip(options, chosen, strict=True))
            shapes = {name: list(tensor.max_shape) for name, tensor in self._inputs.items()}
            for name, at, key in places:
                shapes[name][at] = by_key[key]
            yield {name: tuple(shape) for name, shape in shapes.items()}


def _dims(tensor: Tensor) -> list[Dim]:
    """The dynamic dimensions of a tensor in order."""
    return [dim for dim in tensor.shape if isinstance(dim, Dim)]
