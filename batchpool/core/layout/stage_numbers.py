"""The numbers of stages of models, under which the batcher, its counters and its records know them.

A model's INFER stage has the number of the model's entry, the other stages have those above all
entries; so a pool whose models have one stage knows no other numbers than those of entries.
"""

from __future__ import annotations

from batchpool.core.layout.segments import MODELS_MOST
from batchpool.core.tensors.stages import Stage

STAGES_MOST = MODELS_MOST * len(Stage)


def stage_number(entry: int, stage: Stage) -> int:
    """The number of one stage of the model with this entry."""
    return entry + MODELS_MOST * stage


def entry_of(number: int) -> int:
    """The entry of the model whose stage has this number."""
    return number % MODELS_MOST
