"""Every public call of the official clients, each with the value or the error that it gets.

The table of calls is compared with the methods that the installed tritonclient has: a call that is
new there is missing here, and a test says so.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.process.client_calls import CALLS, Ask, given, is_right
from tests.process.pool_under_test import Pool, serving


def public_methods(kind: type) -> set[str]:
    names = inspect.getmembers(kind, inspect.isroutine)
    return {name for name, _ in names if not name.startswith("_")}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """A pool of two front ends whose callers may load models."""
    server = {"frontends": 2, "model_control_mode": "explicit"}
    with serving("Affine", server=server) as pool:
        yield pool


def test_no_call_of_the_clients_is_missing_here() -> None:
    assert public_methods(triton.InferenceServerClient) == set(CALLS)
    assert public_methods(triton_aio.InferenceServerClient) == set(CALLS) - {"async_infer"}


@pytest.mark.parametrize("name", CALLS)
def test_each_call_of_the_blocking_client(pool: Pool, name: str) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{pool.port}", concurrency=4) as client:
        CALLS[name](client, Ask(pool))


# The client does not read the bodies of health answers; those that come a little after their head
# stay open until they are collected.
@pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning")
@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"async_infer"}))
def test_each_call_of_the_asynchronous_client(pool: Pool, name: str) -> None:
    with asyncio.Runner() as runner:

        async def connected() -> Any:
            return triton_aio.InferenceServerClient(f"127.0.0.1:{pool.port}")

        client = runner.run(connected())
        try:
            CALLS[name](client, Ask(pool, runner.run))
        finally:
            runner.run(client.close())
            del client
            gc.collect()


def test_models_are_not_loaded_over_http_by_default(everyday: Pool) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{everyday.port}") as client:
        for method in (client.load_model, client.unload_model):
            with pytest.raises(InferenceServerException, match="model_control_mode") as refused:
                method("affine")
            assert refused.value.status() == "403"


def test_every_front_end_gives_the_pools_figures(pool: Pool) -> None:
    """Connections are spread over the front ends; all tell the same once nothing is under way."""
    url = f"127.0.0.1:{pool.port}"
    for rows in range(1, 9):
        with triton.InferenceServerClient(url) as client:
            is_right(client.infer("affine", given(rows)), rows)
    found = []
    for _ in range(16):
        with triton.InferenceServerClient(url) as client:
            found.append(client.get_inference_statistics("affine"))
    assert all(each == found[0] for each in found)
