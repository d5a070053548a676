"""CALLS: a check of every public call of the official clients, with the value or the error that it
gets. The pool serves Affine, with one worker, and lets its callers load models."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.process.pool_under_test import PATIENCE_S, Pool


class Ask:
    """Calls methods of the client of a pool, the blocking or the asynchronous one, and gives what
    they return."""

    def __init__(self, pool: Pool, result_of: Callable[[Any], Any] = lambda result: result) -> None:
        self.pool = pool
        self._result_of = result_of

    def __call__(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return self._result_of(method(*arguments, **named))

    def worker(self) -> int:
        """The pid of the pool's only worker."""
        (pid,) = self.pool.pids("worker")
        return pid


Call = Callable[[Any, Ask], None]
CALLS: dict[str, Call] = {}


def call(check: Call) -> Call:
    """The check of the public method of this name."""
    CALLS[check.__name__] = check
    return check


def refusal(ask: Ask, *arguments: Any, **named: Any) -> tuple[str, str]:
    """The status and the text with which a call is refused."""
    with pytest.raises(InferenceServerException) as refused:
        ask(*arguments, **named)
    status, text = refused.value.status(), refused.value.message()
    assert status
    assert text
    return status, text


def given(rows: int) -> list[Any]:
    x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    made = triton.InferInput("x", [rows, 4], "FP32")
    made.set_data_from_numpy(x)
    return [made]


def is_right(found: Any, rows: int) -> None:
    x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    assert np.array_equal(found.as_numpy("y"), x * 2 + 1)


# -- health and metadata ----------------------------------------------------------------------


@call
def is_server_live(client: Any, ask: Ask) -> None:
    assert ask(client.is_server_live)


@call
def is_server_ready(client: Any, ask: Ask) -> None:
    assert ask(client.is_server_ready, query_params={"who": "me"})


@call
def is_model_ready(client: Any, ask: Ask) -> None:
    assert ask(client.is_model_ready, "affine")
    assert ask(client.is_model_ready, "affine", "1")
    assert not ask(client.is_model_ready, "affine", "2")
    assert not ask(client.is_model_ready, "nobody")


@call
def get_server_metadata(client: Any, ask: Ask) -> None:
    found = ask(client.get_server_metadata)
    assert found["name"] == "batchpool"
    offered = {"statistics", "model_repository", "model_configuration", "schedule_policy"}
    assert offered <= set(found["extensions"])
    absent = {"trace", "logging", "system_shared_memory", "cuda_shared_memory", "sequence"}
    assert not absent & set(found["extensions"])


@call
def get_model_metadata(client: Any, ask: Ask) -> None:
    for version in ("", "1"):
        found = ask(client.get_model_metadata, "affine", version)
        assert found["versions"] == ["1"]
        assert found["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}]
    assert refusal(ask, client.get_model_metadata, "affine", "2")[0] == "404"


@call
def get_model_config(client: Any, ask: Ask) -> None:
    for version in ("", "1"):
        found = ask(client.get_model_config, "affine", version)
        assert found["output"] == [{"name": "y", "data_type": "TYPE_FP32", "dims": [4]}]
    assert refusal(ask, client.get_model_config, "nobody")[0] == "404"


# -- statistics ---------------------------------------------------------------------------------


@call
def get_inference_statistics(client: Any, ask: Ask) -> None:
    def of_affine(**named: Any) -> dict[str, Any]:
        (found,) = ask(client.get_inference_statistics, **named)["model_stats"]
        return dict(found)

    before = of_affine()
    begun_ms = time.time() * 1000
    for rows in (3, 5):
        is_right(ask(client.infer, "affine", given(rows)), rows)
    refusal(ask, client.infer, "affine", given(2), outputs=[triton.InferRequestedOutput("no")])
    named: dict[str, Any]
    for named in ({}, {"model_name": "affine"}, {"model_name": "affine", "model_version": "1"}):
        after = of_affine(**named)
        assert (after["name"], after["version"]) == ("affine", "1")
        assert after["inference_count"] - before["inference_count"] == 8
        assert after["execution_count"] - before["execution_count"] == 2
        assert begun_ms - 1000 <= after["last_inference"] <= time.time() * 1000 + 1000
        rises = {
            name: (
                times["count"] - before["inference_stats"][name]["count"],
                times["ns"] - before["inference_stats"][name]["ns"],
            )
            for name, times in after["inference_stats"].items()
        }
        counts = {name: count for name, (count, _) in rises.items()}
        assert counts == {
            "success": 2, "fail": 1, "queue": 8, "compute_input": 2, "compute_infer": 2,
            "compute_output": 2, "cache_hit": 0, "cache_miss": 0,
        }  # fmt: skip
        assert all(ns > 0 for name, (_, ns) in rises.items() if "cache" not in name)
        parts = sum(rises[name][1] for name in ("compute_input", "compute_infer", "compute_output"))
        assert parts < rises["success"][1], "a request takes longer than its batch"
    assert refusal(ask, client.get_inference_statistics, "nobody")[0] == "404"
    assert refusal(ask, client.get_inference_statistics, "affine", "2")[0] == "404"


# -- repository ---------------------------------------------------------------------------------


@call
def get_model_repository_index(client: Any, ask: Ask) -> None:
    assert ask(client.get_model_repository_index) == [
        {"name": "affine", "version": "1", "state": "READY", "reason": ""}
    ]


@call
def load_model(client: Any, ask: Ask) -> None:
    pid = ask.worker()
    ask(client.load_model, "affine")
    assert ask.worker() != pid, "a load is a reload: another worker serves"
    is_right(ask(client.infer, "affine", given(1)), 1)
    status, text = refusal(ask, client.load_model, "affine", config="{}")
    assert (status, "parameter 'config'" in text) == ("501", True)
    status, text = refusal(ask, client.load_model, "affine", config="{}", files={"file:1/m": b"x"})
    assert status == "501"
    status, text = refusal(ask, client.load_model, "nobody")
    assert (status, "configuration file has no model 'nobody'" in text) == ("404", True)


@call
def unload_model(client: Any, ask: Ask) -> None:
    for unload_dependents in (False, True):
        status, text = refusal(
            ask, client.unload_model, "affine", unload_dependents=unload_dependents
        )
        assert (status, "remove its [[model]]" in text) == ("501", True)
    assert refusal(ask, client.unload_model, "nobody")[0] == "404"
    assert ask(client.is_model_ready, "affine")


# -- what is not offered ------------------------------------------------------------------------


@call
def get_trace_settings(client: Any, ask: Ask) -> None:
    for model in (None, "affine"):
        status, text = refusal(ask, client.get_trace_settings, model)
        assert (status, "trace extension is not offered" in text) == ("501", True)
    assert refusal(ask, client.get_trace_settings, "nobody")[0] == "404"


@call
def update_trace_settings(client: Any, ask: Ask) -> None:
    for model in (None, "affine"):
        settings = {"trace_level": ["TIMESTAMPS"]}
        assert refusal(ask, client.update_trace_settings, model, settings)[0] == "501"


@call
def get_log_settings(client: Any, ask: Ask) -> None:
    status, text = refusal(ask, client.get_log_settings)
    assert (status, "log_level" in text) == ("501", True)


@call
def update_log_settings(client: Any, ask: Ask) -> None:
    assert refusal(ask, client.update_log_settings, {"log_verbose_level": 1})[0] == "501"


def no_region(status: Callable[..., Any], ask: Ask) -> None:
    assert ask(status) == []
    assert refusal(ask, status, "r") == (
        "404", "there is no shared-memory region 'r'; none can be registered here",
    )  # fmt: skip


@call
def get_system_shared_memory_status(client: Any, ask: Ask) -> None:
    no_region(client.get_system_shared_memory_status, ask)


@call
def get_cuda_shared_memory_status(client: Any, ask: Ask) -> None:
    no_region(client.get_cuda_shared_memory_status, ask)


@call
def register_system_shared_memory(client: Any, ask: Ask) -> None:
    status, text = refusal(ask, client.register_system_shared_memory, "r", "/r", 64)
    assert (status, "send binary tensors" in text) == ("501", True)


@call
def register_cuda_shared_memory(client: Any, ask: Ask) -> None:
    status, text = refusal(ask, client.register_cuda_shared_memory, "r", b"a" * 64, 0, 64)
    assert (status, "bp.Client" in text) == ("501", True)


@call
def unregister_system_shared_memory(client: Any, ask: Ask) -> None:
    ask(client.unregister_system_shared_memory)
    ask(client.unregister_system_shared_memory, "r")


@call
def unregister_cuda_shared_memory(client: Any, ask: Ask) -> None:
    ask(client.unregister_cuda_shared_memory)
    ask(client.unregister_cuda_shared_memory, "r")


# -- inference ----------------------------------------------------------------------------------


@call
def infer(client: Any, ask: Ask) -> None:
    found = ask(client.infer, "affine", given(3), "1", request_id="")
    is_right(found, 3)
    assert "id" not in found.get_response()
    found = ask(client.infer, "affine", given(3), request_id="7", priority=1, timeout=60_000_000)
    is_right(found, 3)
    assert found.get_response()["id"] == "7"
    assert refusal(ask, client.infer, "affine", given(1), priority=256)[0] == "400"
    assert refusal(ask, client.infer, "affine", given(1), timeout=1)[0] == "504"
    status, text = refusal(ask, client.infer, "affine", given(1), sequence_id=5)
    assert (status, "sequences are not supported" in text) == ("400", True)
    assert refusal(ask, client.infer, "affine", given(1), "2")[0] == "404"


@call
def async_infer(client: Any, ask: Ask) -> None:
    asked = [client.async_infer("affine", given(rows)) for rows in (1, 2, 3)]
    for rows, found in zip((1, 2, 3), asked, strict=True):
        is_right(found.get_result(), rows)


@call
def generate_request_body(client: Any, ask: Ask) -> None:
    body, length = type(client).generate_request_body(
        given(2), [triton.InferRequestedOutput("y")], request_id="own"
    )
    answer = httpx.post(
        f"http://127.0.0.1:{ask.pool.port}/v2/models/affine/infer",
        content=body,
        headers={"Inference-Header-Content-Length": str(length)},
        timeout=PATIENCE_S,
    )
    assert answer.status_code == 200
    size = int(answer.headers["inference-header-content-length"])
    found = type(client).parse_response_body(answer.content, header_length=size)
    is_right(found, 2)
    assert found.get_response()["id"] == "own"


@call
def parse_response_body(client: Any, ask: Ask) -> None:
    generate_request_body(client, ask)


# -- the client's own -----------------------------------------------------------------------------


class Named:
    """A plugin that names the caller, as the clients call one."""

    def __call__(self, request: Any) -> None:
        request.headers["X-Client-Id"] = "plugin"


@call
def register_plugin(client: Any, ask: Ask) -> None:
    client.register_plugin(Named())
    assert ask(client.is_server_live)
    client.unregister_plugin()


@call
def unregister_plugin(client: Any, ask: Ask) -> None:
    register_plugin(client, ask)
    assert client.plugin() is None


@call
def plugin(client: Any, ask: Ask) -> None:
    assert client.plugin() is None


@call
def close(client: Any, ask: Ask) -> None:
    assert ask(client.is_server_live)
    ask(client.close)
