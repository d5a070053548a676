"""The rows of fetched records through the pool, and the records that come of them."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from batchpool.client.aio import AsyncClient
from batchpool.consume.plan import ConsumePlan
from batchpool.consume.values import ValueReader, ValueWriter
from batchpool.core.errors import InvalidRequest, PoolError
from batchpool.core.priority import BACKGROUND


@dataclass(frozen=True, slots=True)
class RowEnd:
    """The end of the record at a place. value: of the result; None where the record failed for
    good, with this error."""

    at: int
    value: bytes | None
    error: PoolError | None = None


class RecordRows:
    """Runs the values of records as rows of one model. What a pool refuses for the moment is sent
    again for as long as it takes."""

    def __init__(
        self, client: AsyncClient, plan: ConsumePlan, reader: ValueReader, writer: ValueWriter
    ) -> None:
        self._client = client
        self._plan = plan
        self._reader = reader
        self._writer = writer

    async def ends(self, values: Sequence[bytes | None]) -> AsyncGenerator[RowEnd, None]:
        """The ends of these values, in the order in which they come."""
        rows: list[dict[str, Any]] = []
        places: list[int] = []
        for at, value in enumerate(values):
            try:
                rows.append(self._reader.row(value))
            except InvalidRequest as error:
                yield RowEnd(at, None, error)
            else:
                places.append(at)
        if not rows:
            return
        results = self._client.map(
            self._plan.model,
            rows,
            ordered=False,
            errors="return",
            parameters=dict(self._plan.parameters) or None,
            outputs=self._plan.outputs or None,
            priority=BACKGROUND,
            outage_s=math.inf,
        )
        try:
            async for number, result in results:
                if isinstance(result, PoolError):
                    yield RowEnd(places[number], None, of_record(result, number))
                else:
                    yield RowEnd(places[number], self._writer.value(result))
        finally:
            await results.aclose()


def of_record(error: PoolError, number: int) -> PoolError:
    """The error without the numbers of its row in a call that the reader of a letter never saw."""
    text = error.message.removeprefix(f"row {number}: ").removeprefix("row 0: ")
    return error if text == error.message else type(error)(text)
