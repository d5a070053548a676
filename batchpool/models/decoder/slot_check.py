"""Refusing models that cannot be run in slots: by the caches that they keep, and by their logits.

The library has hundreds of decoders, and code of a folder may be one more. Lists of those that work
would be wrong soon, so each is tried when it is loaded: a short sequence in slots, in chunks and
beside another one, has to give the logits that the library's own cache gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from batchpool.models.decoder.packed_attention import Attention
from batchpool.models.decoder.packed_cache import PackedCache
from batchpool.models.decoder.packed_calls import PackedCalls
from batchpool.models.decoder.slot_cache import LayerShape, SlotCache
from batchpool.models.decoder.slot_calls import SlotModel, cache_argument

TRIED_TOKENS = 12
_PARTS = ((0, 5), (5, 4), (9, 1), (10, 1), (11, 1))  # where they begin, and their tokens
# How far logits may differ, as a part of the largest: the order of additions is another one.
_TOLERANCES = {torch.float32: 1e-3, torch.float64: 1e-3}
_HALF_TOLERANCE = 0.1


class UnfitModelError(ValueError):
    """The model cannot be run in slots; the text names it and the reason."""


def _refusal(model: torch.nn.Module, reason: str) -> UnfitModelError:
    return UnfitModelError(f"{type(model).__name__} cannot be served as a generator: {reason}")


def reference(model: Any, device: torch.device) -> tuple[list[LayerShape], torch.Tensor]:
    """The shapes of a model's layers, and its logits [TRIED_TOKENS, vocabulary] with the library's
    own cache. Raises UnfitModelError for a model that keeps no plain keys and values."""
    name = cache_argument(model)
    if name is None:
        raise _refusal(model, "its forward takes no cache of keys and values")
    cache = DynamicCache(config=model.config)
    try:
        found = model(input_ids=_tried_ids(model, device)[None], use_cache=True, **{name: cache})
    except Exception as error:
        raise _refusal(model, f"it raised {type(error).__name__}: {error}") from error
    layers = []
    for number, layer in enumerate(cache.layers):
        kept = [getattr(layer, kind, None) for kind in ("keys", "values")]
        key, value = (
            (each.shape[1], each.shape[3])
            if isinstance(each, torch.Tensor) and each.dim() == 4
            else None
            for each in kept
        )
        if key is None or value is None:
            raise _refusal(
                model, f"its layer {number} keeps no keys and values ({type(layer).__name__})"
            )
        layers.append(LayerShape(key, value))
    if not layers:
        raise _refusal(model, "it stored nothing in the cache of keys and values it was given")
    logits: torch.Tensor = found.logits[0]
    return layers, logits


def check(
    model: torch.nn.Module, cache: SlotCache, expected: torch.Tensor, adds_mask: bool = False
) -> None:
    """Raise UnfitModelError unless the model gives the logits `expected` in slots of this cache.

    expected: as `reference` gives them. The cache needs two slots and TRIED_TOKENS tokens.
    adds_mask: as of SlotModel.
    """
    device = expected.device
    call = SlotModel(model, cache, device, adds_mask)
    ids = _tried_ids(model, device)
    with _refusing(model):
        for first, tokens in _PARTS:
            found = _call(call, cache, ids[first : first + tokens], first)
            _compare(model, found, expected[first + tokens - 1])


def check_packed(
    model: torch.nn.Module,
    layers: Sequence[LayerShape],
    attention: Attention,
    expected: torch.Tensor,
) -> None:
    """Raise UnfitModelError unless the model, whose attention is packed_attention's, gives the
    logits `expected` for tokens in a single row, beside those of another sequence."""
    device, vocabulary = expected.device, expected.shape[1]
    dtype: torch.dtype = model.dtype  # type: ignore[assignment]
    cache = PackedCache(layers, 2, TRIED_TOKENS, dtype, device)
    calls = PackedCalls(model, cache, attention, vocabulary, expected.dtype, device)
    ids = _tried_ids(model, device).tolist()
    with _refusing(model):
        for first, tokens in _PARTS:
            part = ids[first : first + tokens]
            if tokens > 1:
                other = (0, first, part[::-1])
                found = calls.run(0, [other, (1, first, part)], 3 * tokens)[1]
            else:
                calls.set_live([0, 1])
                calls.tokens[:2] = part[0]
                found = calls.run(2, [], 0)[1]
            _compare(model, found, expected[first + tokens - 1])


@contextmanager
def _refusing(model: torch.nn.Module) -> Iterator[None]:
    """Whatever the model raises within is the reason of an UnfitModelError."""
    try:
        yield
    except UnfitModelError:
        raise
    except Exception as error:
        reason = f"with a cache of slots it raised {type(error).__name__}: {error}"
        raise _refusal(model, reason) from error


def _call(call: SlotModel, cache: SlotCache, ids: torch.Tensor, first: int) -> torch.Tensor:
    """The logits [vocabulary] behind tokens of slot 1, whose first has the position `first`; beside
    a row of padding in slot 0, and behind one token of padding where there is more than one."""
    tokens, device = len(ids), ids.device
    width = tokens + (tokens > 1)
    given = torch.zeros((2, width), dtype=torch.int64, device=device)
    given[1, width - tokens :] = ids
    into = torch.full_like(given, cache.slots)
    into[1, width - tokens :] = 1
    positions = torch.zeros_like(given)
    positions[1, width - tokens :] = torch.arange(first, first + tokens, device=device)
    rows = None if tokens == 1 else torch.arange(2, device=device)
    return call(given, into, positions, rows, TRIED_TOKENS)[1]


def _compare(model: torch.nn.Module, found: torch.Tensor, expected: torch.Tensor) -> None:
    allowed = _TOLERANCES.get(expected.dtype, _HALF_TOLERANCE) * float(expected.abs().max())
    difference = float((found.float() - expected.float()).abs().max())
    if not difference <= allowed:  # also where it is no number
        raise _refusal(
            model,
            f"with keys and values in slots its logits differ by {difference:.3g} from those of the"
            f" library's own cache, by more than {allowed:.3g}; its attention seems to follow"
            " neither the mask nor the position ids that it is given",
        )


def _tried_ids(model: Any, device: torch.device) -> torch.Tensor:
    """Some tokens of the vocabulary, far apart."""
    vocabulary: int = model.get_input_embeddings().num_embeddings
    return torch.arange(1, TRIED_TOKENS + 1, device=device) * 7919 % vocabulary
