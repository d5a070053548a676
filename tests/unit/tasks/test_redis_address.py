"""The address of a store: its forms, its password, what a pool is told that has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import ConfigError
from batchpool.tasks.redis_address import PASSWORD_VARIABLE, store_address
from batchpool.tasks.redis_durability import persistence
from batchpool.tasks.redis_homes import homes_of, reading_order, shares
from batchpool.tasks.store import StoreAway


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis://cache.example:6379/3",
        "rediss://tasks@[::1]:6380?ssl_ca_certs=/etc/ca.pem",
        "unix:///run/redis/redis.sock?db=2",
        "redis://a:7000,b:7001,[::1]:7002",
        "redis+sentinel://a:26379,b:26380/main/1",
        "rediss+sentinel://a/main?ssl_ca_certs=/etc/ca.pem&ssl_check_hostname=false",
    ],
)
def test_these_are_addresses(url: str) -> None:
    assert ServerConfig(tasks_store=url).tasks_store == url


@pytest.mark.parametrize(
    "url",
    [
        "cache:6379",
        "http://cache",
        "unix://run/x",
        "redis://a b",
        "redis://a?ssl_ca_certs=/x",
        "rediss://a?ssl_ca_cert=/x",
        "rediss://a?ssl_ca_certs=x",
        "redis://a,/0",
    ],
)
def test_these_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match=r"tasks_store = .*redis://"):
        ServerConfig(tasks_store=url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@cache",
        "rediss://tasks:hunter2@cache:6379/0",
        "redis://cache?password=hunter2",
        "redis+sentinel://u:hunter2@a:1,b:2/main",
    ],
)
def test_a_password_in_it_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="tasks_store_password_file") as refused:
        ServerConfig(tasks_store=url)
    assert "hunter2" not in str(refused.value)


def test_the_password_is_that_of_the_file_else_of_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("from-file\nsecond line\n")
    env = {PASSWORD_VARIABLE: "from-env"}
    assert store_address("redis://x", str(file), env).password == "from-file"
    assert store_address("redis://x", "", env).password == "from-env"
    assert store_address("redis://x", "", {}).password is None
    assert "from-env" not in repr(store_address("redis://x", "", env))


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe"])
def test_a_file_without_a_password_is_told(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StoreAway, match=f"tasks_store_password_file {file}"):
        store_address("redis://x", str(file), {})


def test_sentinels_and_their_master_are_read() -> None:
    found = store_address("rediss+sentinel://me@a:1,b/main/2", "", {})
    assert (found.is_sentinel, found.is_tls, found.user) == (True, True, "me")
    assert found.hosts() == [("a", 1), ("b", 26379)]
    assert (found.master(), found.database()) == ("main", 2)
    assert found.tls() == {"ssl": True, "ssl_check_hostname": True}


def test_servers_and_their_database_are_read() -> None:
    plain = store_address("redis://a,[::1]:7000/1", "", {})
    assert (plain.is_sentinel, plain.is_tls, plain.user, plain.tls()) == (False, False, None, {})
    assert plain.hosts() == [("a", 6379), ("::1", 7000)]
    assert (plain.database(), plain.socket_path) == (1, None)
    local = store_address("unix://me@/run/a?db=2", "", {})
    assert (local.socket_path, local.database(), local.user) == ("/run/a", 2, "me")
    assert store_address("rediss://a?ssl_check_hostname=false", "", {}).tls() == {
        "ssl": True, "ssl_check_hostname": False
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("yes", "always", "noeviction", "0"), ["on its disk"]),
        (("yes", "everysec", "noeviction", "9"), ["last second"]),
        (("yes", "no", "noeviction", "9"), ["appendfsync no"]),
        (("no", "everysec", "allkeys-lru", "9"), ["appendonly no", "allkeys-lru"]),
        (("no", "everysec", "allkeys-lru", "0"), ["appendonly no"]),
        ((None, None, None, None), ["persistence unknown", "eviction unknown"]),
    ],
)
def test_the_servers_settings_are_judged(
    settings: tuple[str | None, ...], words: list[str]
) -> None:
    lines = persistence(*settings)
    assert len(lines) == len(words)
    assert all(word in line for word, line in zip(words, lines, strict=True))


def test_every_partition_is_the_home_of_one_owner_and_few_move_when_one_goes() -> None:
    owners = {"a", "b", "c"}
    homes = {owner: homes_of(owner, owners, 64) for owner in owners}
    assert sorted(p for of in homes.values() for p in of) == list(range(64))
    assert set(homes["a"]) <= set(homes_of("a", {"b"}, 64)), "what it had it keeps"
    assert homes_of("a", (), 4) == [0, 1, 2, 3]


def test_homes_are_read_first_and_each_begins_once() -> None:
    orders = [reading_order([1, 3], 4, turn) for turn in range(2)]
    assert orders == [[1, 3, 0, 2], [3, 1, 2, 0]]


@pytest.mark.parametrize(
    ("waiting", "most", "expected"),
    [
        ([(0, 9), (1, 9)], 4, [(0, 2), (1, 2)]),
        ([(0, 1), (1, 9)], 4, [(0, 1), (1, 3)]),
        ([(0, 9), (1, 1)], 5, [(0, 3), (1, 1)]),
        ([(0, 9), (1, 9)], 1, [(0, 1)]),
        ([], 4, []),
    ],
)
def test_a_claim_is_shared_out(
    waiting: list[tuple[int, int]], most: int, expected: list[tuple[int, int]]
) -> None:
    assert shares(waiting, most) == expected
