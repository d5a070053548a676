"""Attention of sequences that stand one behind another in a single row of tokens.

The model's own code calls it in place of its attention, by the library's registry of attention
functions, and gives it the row's queries [1, heads, tokens, size] together with whatever the cache
returned: here all keys and values of all slots, [places, heads, size]. Which tokens belong to which
sequence, and where its keys stand, cannot go through the model's code; so `Segments` are said
beforehand, for all layers of a call.

    https://huggingface.co/docs/transformers/attention_interface
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

NAME = "batchpool_packed"  # in the library's registry
_LARGEST_HEAD = 256  # of PyTorch's flash attention


@dataclass(frozen=True)
class Segments:
    """Sequences whose tokens stand one behind another.

    tokens: the part of the row that they take. ends: [n + 1] int32, where each begins in that part,
    and the end of the last. places: [n + 1] int32, where the keys of each begin among all; the last
    counts for nothing. kept: [n] int32, how many keys each has, those of its tokens here among
    them. longest: the most tokens that one has here; with 1 no token stands behind another. length:
    the most keys that one has.
    """

    tokens: slice
    ends: torch.Tensor
    places: torch.Tensor
    kept: torch.Tensor
    longest: int
    length: int


# Attention of segments: queries [tokens, heads, size], keys and values [places, heads, size], and
# the scale of the scores; answers [tokens, heads, size]. A token sees the keys up to its own.
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Segments, float], torch.Tensor]

_called: ContextVar[tuple[Attention, Sequence[Segments]]] = ContextVar("segments of this call")


@contextmanager
def attending(attention: Attention, segments: Sequence[Segments]) -> Iterator[None]:
    """Calls of the model within see these segments, which together make up the row."""
    token = _called.set((attention, segments))
    try:
        yield
    finally:
        _called.reset(token)


def register() -> None:
    """Tell transformers of this attention, as NAME. It wants no mask."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attention)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The form that the library calls. Raises NotImplementedError for what it cannot honour."""
    for name in ("softcap", "position_bias", "s_aux", "sliding_window"):
        if options.get(name) is not None:
            raise NotImplementedError(f"attention with {name}")
    attention, segments = _called.get()
    queries = query[0].transpose(0, 1)
    scale = queries.shape[-1] ** -0.5 if scaling is None else scaling
    found = [attention(queries[each.tokens], key, value, each, scale) for each in segments]
    return (found[0] if len(found) == 1 else torch.cat(found))[None], None


def flash_attention(device: torch.device, dtype: torch.dtype) -> Attention | None:
    """PyTorch's flash attention of sequences of various lengths; None where this device, precision
    or version of PyTorch has none."""
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return None
    if torch.version.hip is not None or torch.cuda.get_device_capability(device) < (8, 0):
        return None
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        varlen_attn = None  # type: ignore[assignment]
    if varlen_attn is not None and "seqused_k" in inspect.signature(varlen_attn).parameters:
        return _varlen
    schema = torch.ops.aten._flash_attention_forward.default._schema
    if "seqused_k" in {argument.name for argument in schema.arguments}:
        return _flash  # before PyTorch 2.12
    return None


def _varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: Segments,
    scale: float,
) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    found: Any = varlen_attn(
        query,
        key,
        value,
        segments.ends,
        segments.places,
        segments.longest,
        segments.length,
        scale=scale,
        window_size=(-1, 0) if segments.longest > 1 else (-1, -1),
        enable_gqa=True,
        seqused_k=segments.kept,
    )
    out: torch.Tensor = found
    return out


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: Segments,
    scale: float,
) -> torch.Tensor:
    found: torch.Tensor = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        segments.ends,
        segments.places,
        segments.longest,
        segments.length,
        0.0,
        segments.longest > 1,
        False,
        scale=scale,
        seqused_k=segments.kept,
    )[0]
    return found
