"""The registry of process roles: each can be started, and says what no other edge takes."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from batchpool.supervisor.children.roles import ROLES, Role


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_the_module_of_a_role_can_be_run(role: Role) -> None:
    spec = find_spec(role.module)
    assert spec is not None
    if spec.submodule_search_locations is not None:
        assert find_spec(f"{role.module}.__main__") is not None


def test_roles_differ_in_name_module_and_edge() -> None:
    for part in ("name", "module", "edge"):
        values = [{"name": r.name, "module": r.module, "edge": r.edge.name}[part] for r in ROLES]
        assert len(set(values)) == len(ROLES)


def test_only_what_ends_by_itself_is_not_restarted() -> None:
    assert [r.name for r in ROLES if not r.is_followed(stopping=False)] == ["discovery"]
    assert [r.name for r in ROLES if r.is_followed(stopping=True)] == ["batcher", "worker"]
