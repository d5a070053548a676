"""A device that begins its work only when it is waited for, on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.lazy import library

torch = library("torch")
slot_state = library("batchpool.models.decoder.slot_state")
graphs = library("batchpool.models.decoder.graphs")


class LateDevice:
    """All that engines give it, in order: copies of what the host wrote, calls, copies of tokens.

    Choices of tokens are not among it: sequences have to take the likeliest.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._given: list[Callable[[], Any]] = []
        self._done = 0
        device = self

        def send(table: Any, to: Any) -> None:
            place = table._places[0]
            device._given.append(lambda: to.copy_(place))
            table._copied[0] = device.recorded(None)

        def run(calls: Any, shape: Any, call: Any) -> None:
            device._given.append(calls._captured.get(shape, call))

        def start_reading(state: Any) -> Any:
            state._reads.reverse()
            read = state._reads[0]
            device._given.append(lambda: read.copy_(state.tokens))
            return slot_state.Reading(read, device.recorded(None))

        patch.setattr(slot_state, "recorded", self.recorded)
        patch.setattr(slot_state.HostTable, "send", send)
        patch.setattr(graphs.CallGraphs, "run", run)
        patch.setattr(slot_state.SlotState, "start_reading", start_reading)

    def recorded(self, _: Any) -> Any:
        """An event behind all that was given so far."""
        device, upto = self, len(self._given)

        class Event:
            def synchronize(self) -> None:
                with torch.inference_mode():
                    while device._done < upto:
                        device._given[device._done]()
                        device._done += 1

        return Event()
