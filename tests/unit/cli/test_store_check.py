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


def test_what_keeps_a_user_from_keeping_tasks_is_told_with_what_to_do(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret-word\n")

    def reason(user: str, database: int = 0, file: str = str(password)) -> str:
        url = f"unix://{user}{server.address.socket_path}?db={database}"
        config = ServerConfig(tasks_store=url, tasks_store_password_file=file)
        with pytest.raises(StartError) as caught:
            check_task_store(config)
        return str(caught.value)

    with redis_server("--requirepass", "secret-word", password="secret-word") as server:
        some = ("on", ">secret-word", "~bp:*", "+@all", "-pexpire", "-zadd")
        server.say("ACL", "SETUSER", "some", *some)
        server.say("ACL", "SETUSER", "other", "on", ">secret-word", "~other:*", "+@all")
        assert "this user may not use zadd, pexpire; the documentation" in reason("some@")
        assert "rights that the user needs" in reason("other@")
        assert "out of range" in reason("", 99), "no permission is missing, so it is not unknown"
        for user, file in (("", ""), ("nobody@", str(password))):
            assert "tasks_store_password_file or BATCHPOOL_TASKS_STORE_PASSWORD" in reason(
                user, 0, file
            )
        assert server.say("DBSIZE") == b":0\r\n"


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
