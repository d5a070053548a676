"""The parts inside uvicorn that the front end uses: a release that moves any of it fails here.

pyproject.toml allows the releases with which all tests were run; before another one is let
in, this file names what changed and the tests of connections say whether it matters.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import pytest
import uvicorn
from packaging.requirements import Requirement
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from batchpool.frontend.fast.protocol import FastProtocol
from batchpool.frontend.fast.request import FastRequest
from batchpool.frontend.http.connection import Connection
from tests.unit.frontend.frontend_double import calling, edge, request, serving
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine

# Methods that are overridden or called, with their parameters.
METHODS = {
    HttpToolsProtocol: {
        "connection_made": ["self", "transport"],
        "connection_lost": ["self", "exc"],
        "data_received": ["self", "data"],
        "send_400_response": ["self", "msg"],
        "_unsupported_upgrade_warning": ["self"],
        "on_message_begin": ["self"],
        "on_url": ["self", "url"],
        "on_header": ["self", "name", "value"],
        "on_headers_complete": ["self"],
        "on_body": ["self", "body"],
        "on_message_complete": ["self"],
        "on_response_complete": ["self"],
        "_start_asgi_task": ["self", "cycle", "app"],
        "shutdown": ["self"],
        "pause_writing": ["self"],
        "resume_writing": ["self"],
    },
    RequestResponseCycle: {
        "__init__": [
            "self", "scope", "transport", "flow", "logger", "access_logger", "access_log",
            "default_headers", "message_event", "expect_100_continue", "keep_alive", "on_response",
        ],
    },
    FlowControl: {"pause_reading": ["self"], "resume_reading": ["self"]},
    uvicorn.Server: {"serve": ["self", "sockets"], "capture_signals": ["self"]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [(owner, name, found) for owner, names in METHODS.items() for name, found in names.items()],
)
def test_methods_have_their_parameters(owner: type, name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(owner, name)).parameters) == parameters


def test_status_lines() -> None:
    assert httptools_impl.STATUS_LINE[503] == b"HTTP/1.1 503 Service Unavailable\r\n"


def uses_of(owner: type, name: str) -> set[str]:
    """The attributes of `self.<name>` that a class's own methods use."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == name
    }


@pytest.mark.interpreted
def test_a_fast_cycle_has_all_that_the_protocol_asks_of_its_cycle() -> None:
    asked = uses_of(HttpToolsProtocol, "cycle") | uses_of(Connection, "cycle")
    # The body of a request on the fast road never reaches uvicorn's own methods.
    asked -= {"body", "more_body"}
    cycle = FastRequest(cast(Any, None), cast(Any, None), True)
    assert asked == {"disconnected", "keep_alive", "message_event", "response_complete"}
    assert {name for name in asked if hasattr(cycle, name)} == asked
    cycle.message_event.set()


def test_the_server_keeps_the_state_that_is_used() -> None:
    assert {"connections", "tasks", "total_requests", "default_headers"} <= vars(
        ServerState()
    ).keys()


@on_loop
async def test_a_connection_has_the_attributes_that_are_used() -> None:
    async with edge(Affine) as it, serving(it) as site, calling(site) as caller:
        await until(lambda: site.connections == 1, "the connection is accepted")
        (connection,) = site.server.server_state.connections
        assert isinstance(connection, FastProtocol)
        await caller.send(request("/v2", method="GET"))
        assert (await caller.answer()).status == 200
        used = {
            "access_log", "client", "cycle", "flow", "headers", "loop", "parser", "pipeline",
            "scope", "server_state", "timeout_keep_alive_task", "transport", "url",
        }  # fmt: skip
        assert used <= vars(connection).keys()
        # A request whose head is known ends the timer that ASGI's answer began.
        assert connection.timeout_keep_alive_task is not None
        connection._unset_keepalive_if_required()
        assert connection.timeout_keep_alive_task is None
        assert {"read_paused", "write_paused"} <= vars(connection.flow).keys()
        assert connection.cycle.response_complete is True
        first = site.server.server_state.default_headers
        assert [name for name, _ in first] == [b"date"]
        # Whoever keeps a prepared head tells by identity that the date has changed.
        await until(lambda: site.server.server_state.default_headers is not first, "a second")


def test_the_installed_release_is_one_that_was_tested() -> None:
    text = Path(__file__).parents[4].joinpath("pyproject.toml").read_text()
    requirements = map(Requirement, tomllib.loads(text)["project"]["dependencies"])
    (allowed,) = [found.specifier for found in requirements if found.name == "uvicorn"]
    assert allowed.contains(metadata.version("uvicorn"))
    assert not allowed.contains("0.55.0")
    assert not allowed.contains("1.0")
