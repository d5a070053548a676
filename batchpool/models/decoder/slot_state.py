"""State of running sequences on the device, from step to step; a sequence's slot is its index.

    tokens      [slots + 1] int64   the last token, or NO_NUMBER where the logits were no numbers
    positions   [slots + 1] int64   its position, where its keys and values are written next
    live        [slots + 1] bool    is decoded

The last index is the spare slot, which takes what padding writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch

NO_NUMBER = -1


@dataclass(frozen=True)
class Reading:
    """The last token of each slot, on its way from the device. done: None where it has come."""

    tokens: torch.Tensor
    done: torch.cuda.Event | None

    def wait(self) -> list[int]:
        if self.done is not None:
            self.done.synchronize()
        return self.tokens.tolist()


class SlotState:
    """The state of `slots` slots, in tensors with fixed addresses.

    The host may be ahead of the device: what it sends and reads has two places on the host, which
    take turns.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self.device = device
        self.spare = slots
        self.slots = torch.arange(slots + 1, device=device)
        self.tokens = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self.positions = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self.live = torch.zeros(slots + 1, dtype=torch.bool, device=device)
        self._lives = HostTable(slots + 1, device, torch.bool)
        self._reads = [host_tensor(slots + 1, device) for _ in range(2)]

    def set_live(self, slots: Sequence[int]) -> None:
        """Say which slots are decoded by the calls from now on."""
        live = self._lives.turn()
        live[:] = False
        live[list(slots)] = True
        self._lives.send(self.live)

    def choose(self, slots: Sequence[int], tokens: torch.Tensor) -> None:
        """Replace the likeliest token of slots by others, [n] int64, unless it is NO_NUMBER."""
        at = staged(slots, self.device)
        self.tokens[at] = torch.where(self.tokens[at] < 0, NO_NUMBER, tokens)

    def start_reading(self) -> Reading:
        """Read the tokens that the calls so far make. At most two are under way at once."""
        self._reads.reverse()
        self._reads[0].copy_(self.tokens, non_blocking=True)
        return Reading(self._reads[0], recorded(self.device))


class HostTable:
    """Numbers that the host writes and a device copies in its turn, while the host goes on.

    They stand in two places, which take turns. A place is written again once the device has copied
    it: steps that only take parts of prompts make no tokens, so that nobody waits for the device
    otherwise, and the host would be any number of calls ahead.
    """

    def __init__(
        self, shape: int | tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.int64
    ) -> None:
        self._device = device
        self._places = [host_tensor(shape, device, dtype) for _ in range(2)]
        self._copied: list[torch.cuda.Event | None] = [None, None]

    def turn(self) -> npt.NDArray[Any]:
        """The place to be written next, and sent then; what it held is undefined."""
        self._places.reverse()
        self._copied.reverse()
        copied = self._copied[0]
        if copied is not None:
            copied.synchronize()
        place: npt.NDArray[Any] = self._places[0].numpy()
        return place

    def send(self, to: torch.Tensor) -> None:
        """Copy what was written to the device, which need not have got it when this returns."""
        to.copy_(self._places[0], non_blocking=True)
        self._copied[0] = recorded(self._device)


def recorded(device: torch.device) -> torch.cuda.Event | None:
    """An event behind all that the device has been given so far; None where it has done it."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def likeliest(logits: torch.Tensor) -> torch.Tensor:
    """The token with the largest logit, NO_NUMBER where that is infinite or none; [rows] int64."""
    best = logits.max(-1)
    return torch.where(best.values.isfinite(), best.indices, NO_NUMBER)


def host_tensor(
    shape: int | tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    """Zeros on the host, from where a CUDA device copies while the CPU goes on."""
    return torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")


def staged(
    values: Sequence[object], device: torch.device, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    """A tensor of numbers, or of rows of numbers, on a device; a CUDA device gets it in its turn,
    and the CPU goes on meanwhile."""
    on_host = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
    return on_host.to(device, non_blocking=True)
