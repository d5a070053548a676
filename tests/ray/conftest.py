"""One small cluster of Ray for all tests, with its HTTP proxy; `make test-ray` runs them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

from tests.ports import free_port

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # for this cluster, which is gone afterwards


@pytest.fixture(scope="session")
def cluster() -> Iterator[int]:
    """The port of the proxy. It says that there are two GPUs, which nobody uses."""
    ray = pytest.importorskip("ray", reason="needs Ray Serve: make test-ray")
    from ray import serve

    port = free_port()
    with tempfile.TemporaryDirectory(prefix="bp-ray-", dir="/tmp") as folder:
        ray.init(
            num_cpus=8, num_gpus=2, include_dashboard=False, object_store_memory=128 << 20,
            log_to_driver=False, _temp_dir=folder,
        )  # fmt: skip
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        try:
            yield port
        finally:
            serve.shutdown()
            ray.shutdown()
