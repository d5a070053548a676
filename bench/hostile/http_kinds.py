"""Every kind of hostile HTTP connection.

A kind is a function of the port, as text, and a model's name. It does its mischief for about
`kind.ROUND_S` and returns; the process calls it again.
"""

from __future__ import annotations

from bench.hostile.kind import Kind

HTTP_KINDS: dict[str, Kind] = {}
