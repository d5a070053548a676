"""One pool for all tests that do no harm to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import batchpool as bp
from tests.process.pool_under_test import Pool, serving

EVERYDAY = (
    {"import": "Affine", "slots": 2048},
    {"import": "Probe", "max_batch": 8},
    "Slow",
    "Scaled",
    "Ragged",
    "Echo",
    "Grow",
    "Special",
    "Faulty",
)


@pytest.fixture(scope="session")
def everyday() -> Iterator[Pool]:
    """A pool of small models, one worker each."""
    with serving(*EVERYDAY) as pool:
        pool.tracebacks_expected = True  # of models that raise, for their authors
        yield pool


@pytest.fixture
def client(everyday: Pool) -> Iterator[bp.Client]:
    """A client of the everyday pool."""
    with everyday.client() as client:
        yield client
