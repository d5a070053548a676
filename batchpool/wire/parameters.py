"""Request parameters: those of the protocol and those that the model declares.

timeout             whole microseconds, 0 = none; the smaller of it and the header's is used
priority            1 (first) to 255, 0 = default; X-Request-Priority takes precedence unless it
                    is 0, since the request was admitted by it before the body came
binary_data_output  default encoding of the outputs
sequence_*          not offered: 400, unless the model declares it
triton_*            reserved: 400
declared            passed to the model, checked against its dtype
anything else       400; so is null, which is not taken for an absent parameter
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from batchpool.core.errors import InvalidRequest
from batchpool.core.priority import LOWEST
from batchpool.wire.model_tables import RESERVED_PREFIX, ModelTables
from batchpool.wire.request import LONGEST_NS, brief

_SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")


@dataclass(slots=True)
class Asked:
    """The parameters of one request; `values` are the model's own, not yet checked."""

    timeout_ns: int | None = None
    priority: int = 0
    binary_output: bool = False
    values: dict[str, Any] = field(default_factory=dict)


def read(tables: ModelTables, given: Mapping[str, Any]) -> Asked:
    """Read the parameters of one request; InvalidRequest names the one that is wrong."""
    asked = Asked()
    for name, value in given.items():
        if value is None:
            raise InvalidRequest(
                f"parameter {brief(name)} is null; a value, or no such parameter, was expected"
            )
        if name == "binary_data_output":
            if type(value) is not bool:
                raise _wrong(name, value, "true or false")
            asked.binary_output = value
        elif name in tables.declared:
            asked.values[name] = value
        elif name == "timeout":
            if type(value) is not int or value < 0:
                raise _wrong(name, value, "a whole number of microseconds")
            asked.timeout_ns = min(value * 1000, LONGEST_NS) or None
        elif name == "priority":
            if type(value) is not int or not 0 <= value <= LOWEST:
                raise _wrong(name, value, f"a whole number from 0 to {LOWEST}")
            asked.priority = value
        else:
            raise _unknown(tables, name)
    return asked


def _wrong(name: str, value: object, expected: str) -> InvalidRequest:
    return InvalidRequest(f"parameter {name!r} is {brief(value)}; {expected} was expected")


def _unknown(tables: ModelTables, name: str) -> InvalidRequest:
    if name in _SEQUENCE:
        return InvalidRequest(
            f"parameter {name!r}: sequences are not supported by model {tables.spec.name!r}"
        )
    if name.startswith(RESERVED_PREFIX):
        return InvalidRequest(f"parameter {brief(name)} is reserved: it begins {RESERVED_PREFIX}")
    known = ", ".join(repr(parameter.name) for parameter in tables.spec.parameters) or "none"
    return InvalidRequest(
        f"model {tables.spec.name!r} has no parameter {brief(name)}; it declares {known}"
    )
