"""Admission without arrays of indices, with one of its checks removed at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from batchpool.batcher.quick_admission import AreInsideArena, QuickAdmission
from batchpool.core.layout.states import SlotState
from batchpool.shm.lane import Lane
from batchpool.shm.ring import unpack
from tests.sim.mutations import Always, Patch


def any_sequence_is_admitted_alone(patch: Patch) -> None:
    admit_few = QuickAdmission._admit_few

    def trusting(self: QuickAdmission, entries: list[int], inside: AreInsideArena) -> bool:
        if len(entries) > 1:
            return admit_few(self, entries, inside)
        real, self._sequence = self._sequence, Always(self._sequence, entries[0] >> 32)
        try:
            return admit_few(self, entries, inside)
        finally:
            self._sequence = real

    patch.setattr(QuickAdmission, "_admit_few", trusting)


def any_state_is_admitted_alone(patch: Patch) -> None:
    admit_few = QuickAdmission._admit_few

    def trusting(self: QuickAdmission, entries: list[int], inside: AreInsideArena) -> bool:
        real, self._state = self._state, Always(self._state, SlotState.SUBMITTED)
        try:
            return admit_few(self, entries, inside)
        finally:
            self._state = real

    patch.setattr(QuickAdmission, "_admit_few", trusting)


class _Said:
    """A lane in which the next load of some columns gives what is said; stores go through."""

    def __init__(self, lane: Any, said: dict[str, Any]) -> None:
        self._lane = lane
        self._said = {name: _SaidColumn(getattr(lane, name), value) for name, value in said.items()}

    def __getattr__(self, name: str) -> Any:
        return self._said.get(name) or getattr(self._lane, name)


class _SaidColumn:
    def __init__(self, column: Any, said: Any) -> None:
        self._column, self._loads = column, said

    def __getitem__(self, key: Any) -> Any:
        return self._loads

    def __setitem__(self, key: Any, value: Any) -> None:
        self._column[key] = value


def _trusting_in_runs(patch: Patch, said: Callable[[Any], dict[str, Any]]) -> None:
    admit_run = QuickAdmission._admit_run

    def trusting(self: QuickAdmission, entries: Any, inside: AreInsideArena) -> bool:
        real = self._lane
        self._lane = cast("Lane", _Said(real, said(entries)))
        try:
            return admit_run(self, entries, inside)
        finally:
            self._lane = real

    patch.setattr(QuickAdmission, "_admit_run", trusting)


def any_sequence_is_admitted_in_a_run(patch: Patch) -> None:
    _trusting_in_runs(patch, lambda entries: {"sequence": unpack(entries)[1]})


def any_state_is_admitted_in_a_run(patch: Patch) -> None:
    def submitted(entries: Any) -> dict[str, Any]:
        return {"state": np.full(len(entries), SlotState.SUBMITTED, dtype=np.uint32)}

    _trusting_in_runs(patch, submitted)
