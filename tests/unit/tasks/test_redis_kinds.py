"""The store in every kind of server: Valkey, clusters, behind Sentinels, over TLS, with users."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchpool.tasks.record import Again, PutOutcome
from batchpool.tasks.redis_address import StoreAddress, store_address
from batchpool.tasks.redis_store import RedisStore
from batchpool.tasks.store import StoreAway
from tests.certificates import certificate
from tests.ports import free_port
from tests.redis_groups import await_reply, cluster_address, identity, redis_cluster, watched_pair
from tests.redis_server import RedisServer, redis_server
from tests.unit.tasks.redis_calls import LIMITS, NOW, claimed, done, letter, new, state


def store_at(address: StoreAddress, lease_s: float = 0.0) -> RedisStore:
    return RedisStore(address, LIMITS, lambda: NOW, lease_s)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure is followed by no pause."""
    monkeypatch.setattr("batchpool.tasks.redis_link._PAUSE_S", 0.0)


# The least that a store needs: docs/tasks.md has it.
RIGHTS = (
    "resetchannels", "~bp:*", "-@all", "+@hash", "+@sortedset", "+@string", "+eval",
    "+evalsha", "+del", "+unlink", "+exists", "+pexpire", "+info", "+time", "+config|get",
)  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[RedisServer]]:
    with redis_cluster(masters=3, replicas=1) as nodes:
        yield nodes


def live_through(address: StoreAddress) -> None:
    """The whole life of tasks, by two owners."""
    store = store_at(address)
    store.put([new(i, i % 16, key=bytes([i]) * 32) for i in range(40)], NOW)
    tasks = claimed(store, 30)
    assert all(store.finish([done(task) for task in tasks[:10]], NOW))
    assert all(store.finish([letter(task) for task in tasks[10:20]], NOW))
    assert all(store.retry([Again(t.id, t.claim, NOW, True) for t in tasks[20:25]], NOW))
    heir = store_at(address)
    assert heir.reclaim(NOW).tasks == 5
    assert len(claimed(heir)) == 20
    assert len(heir.list_tasks("", "", 100)) == 40
    letters = [kept.letter for kept in heir.letters("", "", 0, 100, (), whole=True)]
    assert all(heir.replay(letters, NOW, NOW + 10_000))
    assert heir.next_due_ms(["m"]) == [0]
    assert len(heir.sweep(NOW + 10_000).ended) == 30
    assert heir.sweep(NOW + 20_000).results == 30
    heir.close()


def test_tasks_live_in_valkey() -> None:
    with redis_server(name="valkey-server", port=free_port()) as server:
        live_through(server.address)


def test_tasks_live_in_a_cluster(cluster: list[RedisServer]) -> None:
    """A script that touched two slots would be refused. A host that is away is passed over."""
    for node in cluster:
        rights = (*RIGHTS, "+cluster|slots", "+command", "+asking")
        assert node.say("ACL", "SETUSER", "tasks", "on", ">secret-word", *rights) == b"+OK\r\n"
    hosts = f"127.0.0.1:{free_port()},127.0.0.1:{cluster[1].port}"
    live_through(StoreAddress(f"redis://tasks@{hosts}", "secret-word"))


def test_a_slot_that_has_moved_is_followed(cluster: list[RedisServer]) -> None:
    one, other, third, _ = cluster
    store = store_at(cluster_address(one), 600.0)
    slot = one.say("CLUSTER", "KEYSLOT", "bp:{5}:n").strip()[1:].decode()
    store.put([new(1, 4)], NOW)
    for node in (other, one, third):  # the one that takes it is told first
        assert node.say("CLUSTER", "SETSLOT", slot, "NODE", identity(other)) == b"+OK\r\n"
    assert store.put([new(2, 5)], NOW)[0].outcome is PutOutcome.NEW
    assert all(store.finish([done(task) for task in claimed(store)], NOW))
    assert state(store, new(2, 5).id) == "done"


def test_a_node_that_fails_is_survived_where_it_has_a_replica(cluster: list[RedisServer]) -> None:
    """Also by a store whose address names nobody but that node."""
    master, other, third, replica = cluster
    store = store_at(cluster_address(master), 600.0)
    store.put([new(i, i % 16) for i in range(32)], NOW)
    tasks = claimed(store)
    assert replica.say("CLUSTER", "FAILOVER") == b"+OK\r\n"
    for node in (replica, other, third):
        await_reply(node, f"{replica.port}\r\n".encode(), "CLUSTER", "SLOTS")
    master.kill()
    ended = [ok for task in tasks for ok in kept_trying(store, task)]
    assert ended == [True] * 32


def kept_trying(store: RedisStore, task: object) -> list[bool]:
    for _ in range(1000):
        try:
            return store.finish([done(task)], NOW)  # type: ignore[arg-type]
        except StoreAway:
            continue
    raise AssertionError("the cluster did not come back")


def test_a_cluster_without_some_of_its_nodes_is_away() -> None:
    bus = ("--cluster-port", str(free_port()))
    with redis_server("--cluster-enabled", "yes", *bus, port=free_port()) as server:
        with pytest.raises(StoreAway, match="slots are not covered"):
            store_at(server.address).put([new(1)], NOW)
        with pytest.raises(StoreAway, match=r"not allowed in cluster mode|no databases but 0"):
            store_at(StoreAddress(f"{server.address.url}/3")).put([new(1)], NOW)


def test_several_hosts_that_are_no_cluster_are_refused() -> None:
    with redis_server(port=free_port()) as server:
        address = StoreAddress(f"{server.address.url},127.0.0.1:1")
        with pytest.raises(StoreAway, match=r"is in no cluster.*redis\+sentinel"):
            store_at(address).put([new(1)], NOW)


@pytest.mark.parametrize("password", ["", "secret-word"])
def test_a_failover_of_sentinels_is_followed(password: str) -> None:
    """With a password the Sentinels ask for it too."""
    with watched_pair(password=password) as (master, replica, _, address):
        store = store_at(address, 600.0)
        store.put([new(i, i % 16) for i in range(8)], NOW)
        tasks = claimed(store)
        master.say("SET", "after", "all")
        await_reply(replica, b"all", "GET", "after")
        master.kill()
        with pytest.raises(StoreAway):
            store.put([new(9)], NOW)
        await_reply(replica, b"role:master", "INFO", "replication")
        assert [ok for task in tasks for ok in kept_trying(store, task)] == [True] * 8


def test_sentinels_that_know_no_such_master_are_told() -> None:
    with watched_pair() as (_, _, sentinel, _):
        address = StoreAddress(f"redis+sentinel://127.0.0.1:{sentinel.port}/other")
        with pytest.raises(StoreAway, match="'other'"):
            store_at(address).put([new(1)], NOW)


def test_tls_with_certificates_of_both_sides_and_a_user_with_few_rights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = certificate(tmp_path)
    client_cert, client_key = certificate(tmp_path, "client")
    (tmp_path / "ca").write_text(Path(cert).read_text() + Path(client_cert).read_text())
    port = free_port()
    (tmp_path / "acl").write_text(
        f"user default on >other-word ~* &* +@all\nuser tasks on >secret-word {' '.join(RIGHTS)}\n"
    )
    (tmp_path / "password").write_text("secret-word\n")
    with redis_server(
        "--tls-port", str(port), "--tls-cert-file", cert, "--tls-key-file", key,
        "--tls-ca-cert-file", str(tmp_path / "ca"), "--tls-auth-clients", "yes",
        "--aclfile", str(tmp_path / "acl"), password="other-word",
    ):  # fmt: skip
        base = f"rediss://tasks@localhost:{port}/0?ssl_ca_certs={cert}"
        mine = f"&ssl_certfile={client_cert}&ssl_keyfile={client_key}"
        password = str(tmp_path / "password")
        with caplog.at_level(logging.DEBUG):
            live_through(store_address(base + mine, password, {}))
            refused = (
                (base, "tls"),
                (base.replace(cert, client_cert) + mine, "certificate verify failed"),
                (
                    base.replace(cert, "/no/ca.pem") + mine,
                    "ssl_ca_certs .*/no/ca.pem: No such file",
                ),
                (base.replace("tasks@", "") + mine, "(?i)wrongpass|disabled"),
            )
            for url, reason in refused:
                with pytest.raises(StoreAway, match=f"(?i){reason}"):
                    store_at(store_address(url, password, {})).put([new(1)], NOW)
        assert "secret-word" not in caplog.text
