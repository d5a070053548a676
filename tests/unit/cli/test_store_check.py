"""`batchpool check` looks at the server of `tasks_store`."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchpool import cli
from batchpool.cli.store_check import check_task_store
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import StartError
from tests.redis_server import redis_server


def test_it_says_what_the_server_keeps_and_leaves_nothing_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with redis_server("--appendonly", "yes", "--appendfsync", "everysec") as server:
        url = server.address.url
        (line,) = check_task_store(ServerConfig(tasks_store=url))
        assert "last second" in line
        server.say("CONFIG", "SET", "appendonly", "no", "maxmemory", "100mb",
                   "maxmemory-policy", "allkeys-lru")  # fmt: skip
        persistence, eviction = check_task_store(ServerConfig(tasks_store=url))
        assert "appendonly no" in persistence
        assert "allkeys-lru" in eviction
        words = ["check", "--model", "batchpool.examples.affine:Affine", "--tasks"]
        assert cli.main([*words, "--tasks-store", url]) == 0
        assert f"note           {persistence}" in capsys.readouterr().out
        assert server.say("DBSIZE") == b":0\r\n"


def test_a_user_who_may_not_ask_for_settings_learns_that_they_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret-word\n")
    with redis_server() as server:
        server.say("ACL", "SETUSER", "tasks", "on", ">secret-word", "~bp:*", "+@all", "-config")
        address = ServerConfig(
            tasks_store=server.address.url.replace("unix://", "unix://tasks@"),
            tasks_store_password_file=str(tmp_path / "password"),
        )
        assert all("unknown" in line for line in check_task_store(address))


@pytest.mark.parametrize(
    ("url", "password_file", "reason"),
    [
        ("redis://127.0.0.1:1", "", r"redis://127\.0\.0\.1:1: .*refused"),
        ("redis://127.0.0.1:1", "/no/password", "tasks_store_password_file /no/password"),
        ("rediss://a?ssl_ca_certs=/no/ca.pem", "", "ssl_ca_certs .*/no/ca.pem: No such file"),
    ],
)
def test_a_server_that_cannot_be_used_keeps_the_pool_from_starting(
    url: str, password_file: str, reason: str
) -> None:
    config = ServerConfig(tasks_store=url, tasks_store_password_file=password_file)
    with pytest.raises(StartError, match=f"(?i)the store of tasks cannot be used: {reason}"):
        check_task_store(config)
