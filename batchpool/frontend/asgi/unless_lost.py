"""Waits that end when their caller has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from batchpool.frontend.http.request_body import RequestBody

Found = TypeVar("Found")


async def unless_lost(request_body: RequestBody, work: Coroutine[Any, Any, Found]) -> Found | None:
    """The result of the work; None when the caller has closed the connection first.

    The body must have ended.
    """
    doing = asyncio.create_task(work)
    watching = asyncio.create_task(request_body.until_lost())
    try:
        await asyncio.wait((doing, watching), return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else None
    finally:
        doing.cancel()
        watching.cancel()
