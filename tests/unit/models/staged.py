"""A model with `preprocess` run as its worker runs it on the CPU: two instances, one after the
other, and every output checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from batchpool.core.errors import InvalidInput
from batchpool.core.tensors.stages import Stage, stage_spec
from batchpool.model import Batch, Model, spec_of
from batchpool.worker.backends.backend import Backend
from batchpool.worker.backends.preprocess import PreprocessBackend
from batchpool.worker.backends.select import make_backend
from batchpool.worker.fused import FusedBackend
from batchpool.worker.outputs import check_outputs


class Pair:
    """The instances of both stages, loaded; one where the model has no `preprocess`. refused: the
    errors of the rows of the last batch."""

    def __init__(self, make: Callable[[], Model], most: int = 64) -> None:
        self.infer = make()
        self.infer.load("cpu")
        self.spec = spec_of(self.infer)
        self.preprocess = make()
        backend = make_backend(self.infer, stage_spec(self.spec, Stage.INFER), "cpu", most)
        self._backend: Backend = backend
        if self.spec.features:
            self.preprocess.load_preprocess()
            both = {Stage.PREPROCESS: PreprocessBackend(self.preprocess), Stage.INFER: backend}
            self._backend = FusedBackend(self.spec, both, {"preprocess": most})
        self.refused: dict[int, InvalidInput] = {}

    def run(self, batch: Batch) -> dict[str, Any]:
        """The outputs of a batch of inputs without dynamic dimensions."""
        tensors = {t.name: batch[t.name] for t in (*self.spec.inputs, *self.spec.parameters)}
        sizes: dict[str, Any] = {tensor.name: None for tensor in self.spec.inputs}
        found = self._backend.finish(self._backend.launch(batch.n, tensors, sizes, True, ()))
        checked = check_outputs(self.spec, found, batch.n, sizes)
        assert not checked.failed, checked.failed
        self.refused = checked.refused
        return {name: np.asarray(rows) for name, rows in checked.outputs.items()}
