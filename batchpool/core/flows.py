"""Flows: the numbers by which the rows of different callers are told.

    flow                            32 bits, not 0: a caller by its address or its key
    origin << 32 | name             63 bits: a caller that gave itself a name

The origin of a named flow is where its requests come from: the flow that they would have without
the name. Callers can make up any number of names, but not of origins; so what a caller may have is
the share of an origin, within which its names have equal shares.
"""

from __future__ import annotations

_NAME_BITS = 32
NAMED_FROM = 1 << _NAME_BITS  # the least flow that has a name
ORIGIN_MASK = (1 << 31) - 1  # of the bits that an origin may have; a flow is a signed word


def named_flow(origin: int, name: int) -> int:
    """The flow of a name, 32 bits, of this origin, 1 to ORIGIN_MASK."""
    return origin << _NAME_BITS | name


def origin_of(flow: int) -> int:
    """The origin of a flow; of one without a name the flow itself."""
    return flow >> _NAME_BITS if flow >= NAMED_FROM else flow
