"""Settings of a pool's models, as its clients receive them."""

from __future__ import annotations

from dataclasses import dataclass

from batchpool.control.messages import ModelForm
from batchpool.core.tensors.spec import ModelSpec


@dataclass(frozen=True)
class ModelFacts:
    """Settings of a model, known before a lane of it is open.

    index: its place on the state page.
    """

    index: int
    spec: ModelSpec
    watermark: float
    request_timeout_s: float
    max_batch: int
    max_wait_ms: float = 0.0
    batch_sizes: tuple[int, ...] = ()
    idempotent: bool = True

    @classmethod
    def of(cls, form: ModelForm) -> ModelFacts:
        """The facts in a control message."""
        return cls(
            form.entry,
            ModelSpec.from_wire(form.spec),
            form.watermark,
            form.request_timeout_s,
            form.max_batch,
            form.max_wait_ms,
            form.batch_sizes,
            form.idempotent,
        )
