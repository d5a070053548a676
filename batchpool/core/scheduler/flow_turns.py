"""The order of an origin's rows: its flows take turns, each by deadline."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from batchpool.core.flows import NAMED_FROM

_I64 = npt.NDArray[np.int64]


def origins_of(flows: _I64) -> _I64:
    """The origin of each flow, as `origin_of` has it."""
    named = flows >= NAMED_FROM
    if not np.count_nonzero(named):
        return flows
    return np.where(named, flows >> 32, flows)


def in_turns(flows: _I64, deadlines: _I64) -> npt.NDArray[np.intp]:
    """The order of service of rows [n] of one origin, by their places now.

    The places of a flow go to its rows by deadline, those of equal deadline by place. Then all
    rows go by their number within their flow, those of equal number by place.
    """
    if not np.count_nonzero(flows != flows[0]):
        return deadlines.argsort(kind="stable")
    by_deadline = np.lexsort((deadlines, flows))
    places = flows.argsort(kind="stable")
    ranked = flows[places]
    starts = np.flatnonzero(np.concatenate(([True], ranked[1:] != ranked[:-1])))
    counts = np.diff(np.append(starts, len(flows)))
    number = np.arange(len(flows)) - np.repeat(starts, counts)
    order: npt.NDArray[np.intp] = by_deadline[np.lexsort((places, number))]
    return order
