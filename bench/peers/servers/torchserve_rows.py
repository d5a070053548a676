"""The module of TorchServe's worker: bytes in, bytes out. It calls `handle`, first without rows."""

from __future__ import annotations

import os
import sys
from typing import Any

sys.path.insert(0, os.environ["PEER_SERVERS"])

from peer_model import bodies_of, make_model, rows_of
from plan import PLAN

_made: list[Any] = []


def handle(requests: Any, context: Any) -> Any:
    if not _made:
        _made.append(make_model(PLAN.model, PLAN.device))
    if not requests:
        return None
    bodies = [bytes(request.get("body") or request.get("data")) for request in requests]
    return bodies_of(_made[0](rows_of(bodies)))
