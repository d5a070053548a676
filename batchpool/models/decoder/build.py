"""The engine that fits a loaded model and its device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from batchpool.models.decoder import buckets, packed_attention, slot_check
from batchpool.models.decoder.engine import DecoderEngine, Shapes, SlotEngine
from batchpool.models.decoder.graphs import Capture
from batchpool.models.decoder.packed_attention import Attention
from batchpool.models.decoder.packed_cache import PackedCache
from batchpool.models.decoder.packed_calls import PackedCalls, takes_rows_to_keep
from batchpool.models.decoder.packed_engine import PackedEngine
from batchpool.models.decoder.slot_cache import LayerShape, SlotCache
from batchpool.models.decoder.slot_calls import SlotCalls, SlotModel

_log = logging.getLogger("batchpool.worker")


@dataclass(frozen=True)
class Checked:
    """A model that was tried in slots.

    layers: what it keeps for a token. logits: [tokens, vocabulary] of the library's own cache.
    adds_mask: as of SlotModel. attention: with which it takes sequences one behind another in a
    single row; None where it does not.
    """

    model: Any
    layers: Sequence[LayerShape]
    logits: torch.Tensor
    adds_mask: bool
    attention: Attention | None

    @property
    def device(self) -> torch.device:
        return self.logits.device


def checked(
    model: Any,
    adds_mask: bool,
    device: torch.device,
    attention: Attention | None,
    fuse: Callable[[Any, int], None] | None = None,
) -> Checked:
    """Try a model. attention: that of the device for sequences one behind another, None where there
    is none. fuse: compiles a model of so many layers; then it is tried once more. Raises
    UnfitModelError for a model that cannot be run in slots, or not compiled."""
    layers, logits = slot_check.reference(model, device)
    if attention and not adds_mask and _packs(model, layers, attention, logits):
        if fuse is not None:
            fuse(model, len(layers))
            try:
                slot_check.check_packed(model, layers, attention, logits)
            except slot_check.UnfitModelError as error:
                raise slot_check.UnfitModelError(
                    f"{error}; without the option compile it may"
                ) from error
        return Checked(model, layers, logits, adds_mask, attention)
    if fuse is not None:
        _log.warning(
            "option compile is left out: only calls of sequences one behind another are compiled,"
            " which need a GPU, half precision and a model without masks of its own"
        )
    tried = SlotCache(layers, 2, slot_check.TRIED_TOKENS, model.dtype, device)
    slot_check.check(model, tried, logits, adds_mask)
    return Checked(model, layers, logits, adds_mask, None)


def _packs(
    model: Any, layers: Sequence[LayerShape], attention: Attention, logits: torch.Tensor
) -> bool:
    """True when the model takes sequences one behind another; its attention is packed_attention's
    from then on."""
    if not takes_rows_to_keep(model):
        return False
    before = model.config._attn_implementation
    packed_attention.register()
    try:
        model.set_attn_implementation(packed_attention.NAME)
        slot_check.check_packed(model, layers, attention, logits)
    except Exception as error:
        model.set_attn_implementation(before)
        _log.info("prompts and tokens are computed in two calls a step: %s", error)
        return False
    return True


def engine_of(
    found: Checked, slots: int, length: int, budget: int, capture: Capture | None
) -> DecoderEngine:
    """The engine of a model. slots: sequences that run at once. length: tokens of each. budget:
    tokens of prompts that a step takes. capture: makes graphs of calls; None for calls as they are.
    """
    if found.attention is not None:
        return _packed_engine(found, found.attention, slots, length, budget, capture)
    return _slot_engine(found, slots, length, budget, capture)


def _packed_engine(
    found: Checked,
    attention: Attention,
    slots: int,
    length: int,
    budget: int,
    capture: Capture | None,
) -> DecoderEngine:
    cache = PackedCache(found.layers, slots, length, found.model.dtype, found.device)
    rows, chunks = buckets.decode_rows(slots), buckets.prompt_tokens(budget)
    logits = found.logits
    calls = PackedCalls(
        found.model, cache, attention, logits.shape[1], logits.dtype, found.device, chunks
    )
    if capture is not None:
        calls.capture(rows, capture)
    return PackedEngine(calls, cache, rows, chunks, ahead=capture is not None)


def _slot_engine(
    found: Checked, slots: int, length: int, budget: int, capture: Capture | None
) -> DecoderEngine:
    cache = SlotCache(found.layers, slots, length, found.model.dtype, found.device)
    call = SlotModel(found.model, cache, found.device, found.adds_mask)
    chunks = buckets.chunks(budget, slots)
    logits = found.logits
    if capture is None:
        calls = SlotCalls(call, cache, logits.shape[1], logits.dtype, found.device)
        return SlotEngine(calls, cache, Shapes(chunks))
    shapes = Shapes(chunks, buckets.decode_rows(slots), buckets.lengths(length))
    calls = SlotCalls(call, cache, logits.shape[1], logits.dtype, found.device, chunks)
    calls.capture(shapes.rows, shapes.lengths, capture)
    return SlotEngine(calls, cache, shapes)
