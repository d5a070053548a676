"""Hooks of schemathesis: requests that it must not make."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.hook
def filter_case(context: Any, case: Any) -> bool:
    """HTTP has any number of headers that a server does not know and must not refuse."""
    return "x-schemathesis-unknown-property" not in {name.lower() for name in case.headers or {}}
