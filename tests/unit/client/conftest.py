"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from batchpool.client.sync_driver import ThreadDriver
from tests.unit.client.scene import Scene


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    scene = Scene(monkeypatch)
    yield scene
    scene.close()


@pytest.fixture
def driver(scene: Scene) -> Iterator[ThreadDriver]:
    driver = ThreadDriver("here", 10.0, pinned=False)
    yield driver
    driver.close()
