"""Servers that belong together, for tests: a cluster of several, a master with a replica and a
Sentinel."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from batchpool.tasks.redis_address import StoreAddress
from tests.ports import free_port
from tests.redis_server import RedisServer, redis_server

_SLOTS = 16_384
_PATIENCE_S = 60.0


def await_reply(server: RedisServer, expected: bytes, *words: str) -> None:
    """Wait until the reply of a server to a command has these bytes in it."""
    give_up_s = time.monotonic() + _PATIENCE_S
    while expected not in (reply := server.say(*words)):
        server.assert_alive()
        assert time.monotonic() < give_up_s, (words, reply)
        time.sleep(0.01)


def identity(node: RedisServer) -> str:
    """The name of a node in its cluster."""
    return node.say("CLUSTER", "MYID").split(b"\r\n")[1].decode()


def _meet(node: RedisServer, others: list[RedisServer], buses: dict[RedisServer, int]) -> None:
    for other in others:
        node.say("CLUSTER", "MEET", "127.0.0.1", str(other.port), str(buses[other]))


@contextmanager
def redis_cluster(*, masters: int = 3, replicas: int = 0) -> Iterator[list[RedisServer]]:
    """A cluster that takes commands: its masters, then replicas of the first master."""
    with ExitStack() as stack:
        buses: dict[RedisServer, int] = {}
        for _ in range(masters + replicas):
            bus = free_port()
            node = stack.enter_context(
                redis_server(
                    "--cluster-enabled", "yes", "--cluster-port", str(bus),
                    "--cluster-node-timeout", "5000", "--repl-diskless-sync-delay", "0",
                    port=free_port(),
                )
            )  # fmt: skip
            buses[node] = bus
        nodes = list(buses)
        for number, node in enumerate(nodes[:masters]):
            first, last = number * _SLOTS // masters, (number + 1) * _SLOTS // masters - 1
            node.say("CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
            node.say("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
        _meet(nodes[0], nodes[1:], buses)
        for node in nodes:
            await_reply(node, b"cluster_known_nodes:%d" % len(nodes), "CLUSTER", "INFO")
        for replica in nodes[masters:]:
            await_reply(replica, b"+OK", "CLUSTER", "REPLICATE", identity(nodes[0]))
        for node in nodes:
            await_reply(node, b"cluster_state:ok", "CLUSTER", "INFO")
        for _ in nodes[masters:]:
            await_reply(nodes[0], b",state=online", "INFO", "replication")
        yield nodes


def cluster_address(*nodes: RedisServer) -> StoreAddress:
    """The address of a cluster by these nodes of it."""
    return StoreAddress("redis://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes))


@contextmanager
def watched_pair(
    *, password: str = ""
) -> Iterator[tuple[RedisServer, RedisServer, RedisServer, StoreAddress]]:
    """A master with a replica that has all it has, and the Sentinel that watches both as `main`;
    the address by the Sentinel. password: of all three."""
    secret = ("--requirepass", password, "--masterauth", password) if password else ()
    quick = ("--repl-diskless-sync-delay", "0")
    with (
        redis_server(*quick, *secret, port=free_port(), password=password) as master,
        redis_server(
            *quick, *secret, "--replicaof", f"127.0.0.1 {master.port}",
            port=free_port(), password=password,
        ) as replica,
    ):  # fmt: skip
        await_reply(master, b",state=online", "INFO", "replication")
        lines = [
            f"sentinel monitor main 127.0.0.1 {master.port} 1",
            "sentinel down-after-milliseconds main 300",
            "sentinel failover-timeout main 3000",
        ]
        if password:
            lines += [f"sentinel auth-pass main {password}", f"requirepass {password}"]
        file = master.folder / "sentinel.conf"
        file.write_text("\n".join(lines) + "\n")
        with redis_server(str(file), "--sentinel", port=free_port(), password=password) as sentinel:
            await_reply(sentinel, b"\r\n$%d\r\n%d\r\n" % (len(str(replica.port)), replica.port),
                        "SENTINEL", "REPLICAS", "main")  # fmt: skip
            url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main"
            yield master, replica, sentinel, StoreAddress(url, password or None)
