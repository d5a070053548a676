"""Calls of the unchanged model on a single row of tokens: one for each slot that is decoded, then
parts of prompts, one behind another without padding between them.

So a step is one call, whatever its sequences are about, and costs the device what its tokens cost;
a call for those that are decoded and another for the prompts would each start the same kernels. All
tensors that a call reads and writes have fixed addresses, so that it can be replayed as a CUDA
graph. Of slots that are not live a decode writes into the spare slot and changes nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from batchpool.models.decoder.graphs import CallGraphs, Capture
from batchpool.models.decoder.packed_attention import Attention, Segments, attending
from batchpool.models.decoder.packed_cache import PackedCache
from batchpool.models.decoder.slot_calls import Part, cache_argument
from batchpool.models.decoder.slot_state import HostTable, SlotState, likeliest

PROMPTS = 16  # parts of so many prompts in a call


def takes_rows_to_keep(model: torch.nn.Module) -> bool:
    """True where the model's `forward` can be told of which tokens the logits are wanted."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


class _Prompts:
    """The input of the prompts' part of a call, of `tokens` tokens: a table on the host and one on
    the device, int64.

        tokens, their places, their positions        [tokens] each
        slot, position behind, last token            [PROMPTS] each
        keys, place of the first key                 [PROMPTS] each
        where each begins among the tokens           [PROMPTS + 1]
    """

    def __init__(self, tokens: int, device: torch.device) -> None:
        self.tokens = tokens
        size = 3 * tokens + 6 * PROMPTS + 1
        self._host = HostTable(size, device)
        self._device = torch.zeros(size, dtype=torch.int64, device=device)

    def write(self, parts: Sequence[Part], spare: int, length: int) -> None:
        """Write parts of prompts. spare, length: the spare slot, and the tokens of a slot."""
        n, table = self.tokens, self._host.turn()
        ids, places, positions = table[:n], table[n : 2 * n], table[2 * n : 3 * n]
        rows = table[3 * n : -1 - PROMPTS].reshape(5, PROMPTS)
        ends = table[-1 - PROMPTS :]
        ids[:], places[:], positions[:] = 0, spare * length, 0
        slots, behind, last, kept, first_place = rows
        slots[:], behind[:], last[:], kept[:], first_place[:] = spare, 0, 0, 0, 0
        at = 0
        for row, (slot, first, part) in enumerate(parts):
            end = at + len(part)
            ids[at:end] = part
            positions[at:end] = range(first, first + len(part))
            places[at:end] = positions[at:end] + slot * length
            ends[row] = at
            slots[row], behind[row], last[row] = slot, first + len(part), end - 1
            kept[row], first_place[row] = first + len(part), slot * length
            at = end
        ends[len(parts) :] = at

    def send(self) -> None:
        """Copy the table to the device, which need not have got it when this returns."""
        self._host.send(self._device)

    def on_device(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """[3, tokens]; [5, PROMPTS]; [PROMPTS + 1]."""
        n, given = self.tokens, self._device
        return (
            given[: 3 * n].view(3, n),
            given[3 * n : -1 - PROMPTS].view(5, PROMPTS),
            given[-1 - PROMPTS :],
        )


class PackedCalls(SlotState):
    """The calls over one cache.

    model: which has the attention of packed_attention. vocabulary: the size of its logits. dtype:
    of them. chunks: the numbers of tokens of prompts whose inputs get fixed addresses; others run
    too.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        cache: PackedCache,
        attention: Attention,
        vocabulary: int,
        dtype: torch.dtype,
        device: torch.device,
        chunks: Sequence[int] = (),
    ) -> None:
        super().__init__(cache.slots, device)
        self._model = model
        self._cache = cache
        self._attention = attention
        name = cache_argument(model)
        assert name is not None, "checked when the model is loaded"
        self._arguments: dict[str, Any] = {name: cache, "use_cache": True}
        self._logits = torch.zeros((cache.slots + PROMPTS, vocabulary), dtype=dtype, device=device)
        self._prompts = {tokens: _Prompts(tokens, device) for tokens in chunks}
        self._graphs = CallGraphs()

    def capture(self, rows: Sequence[int], capture: Capture) -> None:
        """Capture calls that decode these numbers of slots and none, each with prompts of each
        chunk and without."""
        calls: dict[Any, Any] = {}
        for prompts in (*sorted(self._prompts.values(), key=lambda each: -each.tokens), None):
            for n in (*reversed(rows), 0):
                if n or prompts:
                    key = n, prompts.tokens if prompts else 0
                    calls[key] = lambda n=n, prompts=prompts: self._call(n, prompts)
        self._graphs.capture(calls, capture)

    def run(self, rows: int, parts: Sequence[Part], tokens: int) -> torch.Tensor:
        """Make a token for each live one of the first `rows` slots, and one behind each part of a
        prompt; returns the logits [rows + parts, vocabulary], overwritten by the next call.

        parts: at most PROMPTS, of slots that are not live, of at most `tokens` tokens together.
        """
        prompts = None
        if parts:
            prompts = self._prompts.get(tokens) or _Prompts(tokens, self.device)
            prompts.write(parts, self.spare, self._cache.length)
            prompts.send()
        self._graphs.run((rows, tokens if parts else 0), lambda: self._call(rows, prompts))
        return self._logits[: rows + len(parts)]

    def _call(self, rows: int, prompts: _Prompts | None) -> None:
        length = self._cache.length
        ids, places, positions, wanted, segments = [], [], [], [], []
        if rows:
            live, at = self.live[:rows], self.positions[:rows]
            own = self.slots[: rows + 1] * length
            ids.append(self.tokens[:rows].clamp(min=0))  # NO_NUMBER is in no vocabulary
            places.append(torch.where(live, own[:rows] + at, self.spare * length))
            positions.append(at)
            wanted.append(self.slots[:rows])
            # One that is not live reads a key, whatever it is: its logits count for nothing.
            kept = torch.where(live, at + 1, 1)
            segments.append(_segments(slice(0, rows), self.slots[: rows + 1], own, kept, 1, length))
        if prompts:
            given, per_prompt, ends = prompts.on_device()
            slots, behind, last, kept, first_place = per_prompt
            ids.append(given[0])
            places.append(given[1])
            positions.append(given[2])
            wanted.append(last + rows)
            places_of_keys = torch.cat((first_place, first_place[-1:]))
            part = slice(rows, rows + prompts.tokens)
            segments.append(
                _segments(part, ends, places_of_keys, kept, max(2, prompts.tokens), length)
            )
        self._cache.aim(torch.cat(places))
        with attending(self._attention, segments):
            found = self._model(
                input_ids=torch.cat(ids)[None],
                position_ids=torch.cat(positions)[None],
                logits_to_keep=torch.cat(wanted),
                **self._arguments,
            )
        logits = found.logits[0]
        self._logits[: len(logits)] = logits
        best = likeliest(logits)
        if rows:
            self.tokens[:rows] = torch.where(live, best[:rows], self.tokens[:rows])
            self.positions[:rows] = (at + live).clamp(max=length - 1)
        if prompts:
            self.tokens[slots] = best[rows:]
            self.positions[slots] = behind


def _segments(
    tokens: slice,
    ends: torch.Tensor,
    places: torch.Tensor,
    kept: torch.Tensor,
    longest: int,
    length: int,
) -> Segments:
    narrow = [each.to(torch.int32) for each in (ends, places, kept)]
    return Segments(tokens, narrow[0], narrow[1], narrow[2], longest, length)
