"""The JSON of the model repository's routes: the index, and the bodies of its requests.

The repository is the pool's configuration: a model is in it while the file has its [[model]]. An
index body may hold `ready`, true for the models that can be asked now; a load body may hold no
parameters: a model's configuration and files are the operator's, not a caller's. Both may be empty.
"""

from __future__ import annotations

from typing import Any

import msgspec

from batchpool.core.errors import InvalidRequest, NotSupported
from batchpool.wire.inputs import UNREADABLE
from batchpool.wire.request import Body, brief

READY, UNAVAILABLE = "READY", "UNAVAILABLE"


class _Index(msgspec.Struct, forbid_unknown_fields=True):
    ready: bool | None = None


class _Change(msgspec.Struct, forbid_unknown_fields=True):
    parameters: dict[str, msgspec.Raw] | None = None


_INDEX = msgspec.json.Decoder(_Index)
_CHANGE = msgspec.json.Decoder(_Change)


def index_entry(name: str, version: str, why_not: str) -> dict[str, Any]:
    """One model of the index. why_not: why it cannot be asked now, "" if it can."""
    state = UNAVAILABLE if why_not else READY
    return {"name": name, "version": version, "state": state, "reason": why_not}


def reads_ready_only(body: Body) -> bool:
    """True if the body of an index request asks for the ready models only.

    InvalidRequest for what is no such body.
    """
    return bool(_decoded(_INDEX, body, _Index()).ready)


def check_load(body: Body) -> None:
    """Raise why the body of a load request is refused: InvalidRequest, or NotSupported for its
    parameters."""
    given = _decoded(_CHANGE, body, _Change()).parameters
    if given:
        raise NotSupported(
            f"parameter {brief(next(iter(given)))} of a load is not supported: a model is loaded as"
            " the configuration file has it; edit the file and load without parameters"
        )


def _decoded(decoder: msgspec.json.Decoder[Any], body: Body, empty: Any) -> Any:
    if not len(body):
        return empty
    try:
        return decoder.decode(body)
    except UNREADABLE as exc:
        raise InvalidRequest(f"the request's JSON: {str(exc)[:300]}") from None
