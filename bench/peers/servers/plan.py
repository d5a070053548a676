"""The settings of a server: JSON in the environment variable PEER_PLAN.

model, device, ports (the first is HTTP's), folder (for its files), workers, apis, max_batch,
wait_ms, variant; in_flight: requests that it must be willing to hold.
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

PLAN = SimpleNamespace(**json.loads(os.environ["PEER_PLAN"]))
HOST = "127.0.0.1"
PORT: int = PLAN.ports[0]
