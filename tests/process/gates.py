"""Gates of the models that have them: a row with gate g runs until the gate is open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.process.pool_under_test import Pool


def open_gate(pool: Pool, gate: int) -> None:
    (pool.notes / f"gate-{gate}").touch()


@contextmanager
def opened_at_last(pool: Pool, *gates: int) -> Iterator[None]:
    """Open these gates when the block ends, however it ends.

    A test that fails before it opens them leaves calls under way: as the innermost block this lets
    them end, so that the threads in which they wait can be joined.
    """
    try:
        yield
    finally:
        for gate in gates:
            open_gate(pool, gate)
