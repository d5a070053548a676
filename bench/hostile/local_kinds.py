"""Every kind of hostile local client: what a member of the socket's group can do.

A kind is a function of the control socket's path and a model's name. It does its mischief for about
ROUND_S and returns; the process calls it again. It raises what the pool refuses it with.
"""

from __future__ import annotations

from bench.hostile.bell_kinds import BELL_KINDS
from bench.hostile.kind import Kind
from bench.hostile.lane_kinds import LANE_KINDS
from bench.hostile.socket_kinds import SOCKET_KINDS

LOCAL_KINDS: dict[str, Kind] = {
    kind.__name__: kind for kind in (*BELL_KINDS, *LANE_KINDS, *SOCKET_KINDS)
}
