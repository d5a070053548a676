"""Attention of sequences one behind another, by PyTorch's plain attention of each: what a GPU's
kernel does at once, for tests on a CPU."""

from __future__ import annotations

from typing import Any

from tests.lazy import library

torch = library("torch")


def plain_attention(query: Any, key: Any, value: Any, segments: Any, scale: float) -> Any:
    """As packed_attention.Attention. Tokens of no segment get what is no number, as nothing may
    depend on them."""
    found = torch.full_like(query, torch.nan)
    ends, places, kept = (each.tolist() for each in (segments.ends, segments.places, segments.kept))
    assert len(ends) == len(places) == len(kept) + 1
    for first, last, place, keys in zip(ends, ends[1:], places, kept, strict=False):
        if first == last:
            continue
        tokens = last - first
        assert 0 < tokens <= segments.longest
        assert tokens <= keys <= segments.length
        seen = torch.arange(keys) <= torch.arange(keys - tokens, keys)[:, None]
        out = torch.nn.functional.scaled_dot_product_attention(
            query[first:last].transpose(0, 1)[None],
            key[place : place + keys].transpose(0, 1)[None],
            value[place : place + keys].transpose(0, 1)[None],
            attn_mask=seen,
            scale=scale,
            enable_gqa=True,
        )
        found[first:last] = out[0].transpose(0, 1)
    return found
