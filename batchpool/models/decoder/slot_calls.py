"""Decode and prefill calls of the unchanged model over the slots of a cache.

All tensors that a call reads and writes have fixed addresses, so that it can be replayed as a CUDA
graph.

A decode call runs the first n slots, one token each. Of those that are not live it writes into the
spare slot and changes nothing. A prefill call takes tokens of prompts from the host; the rows of a
chunk end at its last column, so that the logits that count are those of the last column whichever
the model is.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from batchpool.models.decoder.buckets import Chunk
from batchpool.models.decoder.graphs import CallGraphs, Capture
from batchpool.models.decoder.slot_cache import SlotCache
from batchpool.models.decoder.slot_state import HostTable, SlotState, likeliest

# A part of a prompt: its slot, the position of its first token, its tokens.
Part = tuple[int, int, Sequence[int]]


def cache_argument(model: torch.nn.Module) -> str | None:
    """The name by which a model's `forward` takes a cache; None where it takes none."""
    known = inspect.signature(model.forward).parameters
    return next((name for name in ("cache", "past_key_values") if name in known), None)


class SlotModel:
    """The model as a function of tokens and of their places in a cache.

    adds_mask: its attention adds the mask to its scores, as that written out in the model's own
    code does; else it takes a mask of truths, as PyTorch's does.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        cache: SlotCache,
        device: torch.device,
        adds_mask: bool = False,
    ) -> None:
        self._model = model
        self._cache = cache
        self._hidden = torch.tensor(torch.finfo(cache.dtype).min, dtype=cache.dtype, device=device)
        self._adds_mask = adds_mask
        self._places = torch.arange(cache.length, device=device)
        name = cache_argument(model)
        assert name is not None, "checked when the model is loaded"
        self._arguments: dict[str, Any] = {name: cache, "use_cache": True}
        if "logits_to_keep" in inspect.signature(model.forward).parameters:
            self._arguments["logits_to_keep"] = 1

    def __call__(
        self,
        ids: torch.Tensor,
        into: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor | None,
        seen: int,
    ) -> torch.Tensor:
        """The logits [rows, vocabulary] behind the last token of each row. ids: [rows, tokens]; the
        others as in `SlotCache.aim`."""
        self._cache.aim(into, positions, rows, seen)
        mask = (self._places[:seen] <= positions[:, :, None])[:, None]
        if self._adds_mask:
            mask = torch.where(mask, torch.zeros_like(self._hidden), self._hidden)
        found = self._model(
            input_ids=ids, attention_mask=mask, position_ids=positions, **self._arguments
        )
        logits: torch.Tensor = found.logits[:, -1]
        return logits


class SlotCalls(SlotState):
    """The calls over one cache.

    vocabulary: the size of the model's logits. dtype: of them. shapes: the chunks whose inputs get
    fixed addresses; others run too.
    """

    def __init__(
        self,
        model: SlotModel,
        cache: SlotCache,
        vocabulary: int,
        dtype: torch.dtype,
        device: torch.device,
        shapes: Sequence[Chunk] = (),
    ) -> None:
        slots = cache.slots
        super().__init__(slots, device)
        self._model = model
        self._last = cache.length - 1
        rows = max([slots, *(rows for rows, _ in shapes)])
        self._decoded = torch.zeros((slots, vocabulary), dtype=dtype, device=device)
        self._prefilled = torch.zeros((rows, vocabulary), dtype=dtype, device=device)
        self._inputs = {shape: self._chunk_input(shape) for shape in shapes}
        self._graphs = CallGraphs()

    def _chunk_input(self, shape: Chunk) -> tuple[HostTable, torch.Tensor]:
        """[rows, tokens + 3] int64 on the host and on the device: tokens, slot, first position,
        number of tokens."""
        size = shape[0], shape[1] + 3
        on_device = torch.zeros(size, dtype=torch.int64, device=self.device)
        return HostTable(size, self.device), on_device

    def capture(self, rows: Sequence[int], lengths: Sequence[int], capture: Capture) -> None:
        """Capture decode calls of these numbers of slots, and prefill calls of the shapes, each for
        each number of tokens that is looked back."""
        calls: dict[Any, Any] = {}
        for seen in reversed(lengths):
            for shape, (_, given) in self._inputs.items():
                if shape[1] <= seen:
                    calls[shape, seen] = lambda given=given, seen=seen: self._prefill(given, seen)
            for n in reversed(rows):
                calls[n, seen] = lambda n=n, seen=seen: self._decode(n, seen)
        self._graphs.capture(calls, capture)

    def decode(self, rows: int, seen: int) -> torch.Tensor:
        """Make a token for each live one of the first slots; returns the logits [rows, vocabulary].

        They are overwritten by the next call.
        """
        self._graphs.run((rows, seen), lambda: self._decode(rows, seen))
        return self._decoded[:rows]

    def _decode(self, rows: int, seen: int) -> None:
        live, positions = self.live[:rows], self.positions[:rows]
        into = torch.where(live, self.slots[:rows], self.spare)
        ids = self.tokens[:rows].clamp(min=0)  # NO_NUMBER is in no vocabulary
        logits = self._model(ids[:, None], into[:, None], positions[:, None], None, seen)
        self._decoded[:rows] = logits
        self.tokens[:rows] = torch.where(live, likeliest(logits), self.tokens[:rows])
        self.positions[:rows] = (positions + live).clamp(max=self._last)

    def prefill(self, parts: Sequence[Part], shape: Chunk, seen: int) -> torch.Tensor:
        """Take parts of prompts, and make the token that follows each; returns the logits
        [rows, vocabulary], which are overwritten by the next call.

        parts: at most as many, and of at most as many tokens, as `shape` says.
        """
        given = self._inputs.get(shape)
        on_host, on_device = self._chunk_input(shape) if given is None else given
        rows, tokens = shape
        table = on_host.turn()
        table[:] = 0
        table[:, tokens] = self.spare
        for row, (slot, first, ids) in zip(table, parts, strict=False):
            row[tokens - len(ids) : tokens] = ids
            row[tokens:] = slot, first, len(ids)
        on_host.send(on_device)
        self._graphs.run((shape, seen), lambda: self._prefill(on_device, seen))
        return self._prefilled[:rows]

    def _prefill(self, given: torch.Tensor, seen: int) -> None:
        ids, (slots, first, counts) = given[:, :-3], given[:, -3:].T
        width = ids.shape[1]
        at = torch.arange(width, device=self.device) - (width - counts)[:, None]
        is_real = at >= 0
        positions = torch.where(is_real, first[:, None] + at, 0)
        into = torch.where(is_real, slots[:, None], self.spare)
        logits = self._model(ids, into, positions, slots, seen)
        self._prefilled[: len(logits)] = logits
        self.tokens[slots] = likeliest(logits)
        self.positions[slots] = first + counts
