"""Clients of the library for an address: of one server, of the Sentinels' master, of a cluster."""

from __future__ import annotations

from typing import Any

from batchpool.tasks.redis_address import StoreAddress
from batchpool.tasks.store import StoreAway

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ModuleNotFoundError as missing:
    raise StoreAway(
        "tasks_store needs the package redis, which is not installed: pip install"
        " 'batchpool[redis]', or leave tasks_store empty for a store on the disk"
    ) from missing

__all__ = ["Clients", "redis"]

_CONNECT_S, _ANSWER_S = 2.0, 10.0
_LEAST_VERSION = (7, 0)


class Clients:
    """Opens clients of one address. It knows all nodes of a cluster once it has met one of them,
    so that the one which the address names may go."""

    def __init__(self, address: StoreAddress) -> None:
        self._address = address
        self._nodes: list[tuple[str, int]] = []

    def open(self) -> tuple[Any, bool]:
        """A client that is connected, and whether it is that of a cluster.

        Raises StoreAway for a server that is no store, and the library's errors.
        """
        if self._address.is_sentinel:
            client = self._of_master()
        elif self._address.socket_path is not None:
            client = redis.Redis(unix_socket_path=self._address.socket_path, **self._settings())
        else:
            return self._of_servers()
        return client, self._is_cluster(client)

    def _settings(self) -> dict[str, Any]:
        return {
            "db": self._address.database(),
            "username": self._address.user,
            "password": self._address.password,
            # A command is repeated by the link, which knows what that means, and nowhere below.
            "retry": Retry(NoBackoff(), 0),
            **self._limits(),
        }

    def _limits(self) -> dict[str, Any]:
        return {
            "socket_timeout": _ANSWER_S,
            "socket_connect_timeout": _CONNECT_S,
            "protocol": 2,
            **self._address.tls(),
        }

    def _of_servers(self) -> tuple[Any, bool]:
        """A client of the first host that answers."""
        hosts = [*dict.fromkeys([*self._address.hosts(), *self._nodes])]
        for host, port in hosts:
            client: Any = redis.Redis(host=host, port=port, **self._settings())
            try:
                is_cluster = self._is_cluster(client)
                if not is_cluster and len(self._address.hosts()) > 1:
                    raise StoreAway(
                        f"{self._address.url}: {host}:{port} is in no cluster; several hosts are"
                        " nodes of one, and redis+sentinel://HOSTS/MASTER names Sentinels"
                    )
                if not is_cluster:
                    return client, False
                client.close()
                return self._of_cluster(host, port), True
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError):
                client.close()
                if (host, port) == hosts[-1]:
                    raise
        raise AssertionError("the last host returns or raises")

    def _of_cluster(self, host: str, port: int) -> Any:
        from redis.cluster import ClusterNode, RedisCluster

        if self._address.database():
            raise StoreAway(
                f"{self._address.url} is a cluster: expected no number of a database, since there"
                " are no databases but 0"
            )
        settings = self._settings()
        del settings["db"], settings["retry"]  # its own retry sends no command of the link
        node: Any = ClusterNode  # it has no types
        client: Any = RedisCluster(startup_nodes=[node(host, port)], **settings)
        self._nodes = [(node.host, node.port) for node in client.get_nodes()]
        return client

    def _of_master(self) -> Any:
        """A client of the master, which its connections ask the Sentinels for."""
        from redis import sentinel

        made: Any = sentinel.Sentinel  # it has no types
        limits = self._limits() | {"socket_timeout": _CONNECT_S, "retry": Retry(NoBackoff(), 0)}
        name = self._address.master()
        ways = [limits]
        if self._address.password is not None:  # Sentinels have the same one, or none
            ways.append(limits | {"password": self._address.password})
        faults = []
        for way in ways:
            sentinels = made(self._address.hosts(), sentinel_kwargs=way)
            try:
                sentinels.discover_master(name)
            except (redis.exceptions.ConnectionError, redis.exceptions.ResponseError) as exc:
                faults.append(exc)
                continue
            return sentinels.master_for(name, **self._settings())
        raise faults[0]

    def _is_cluster(self, client: Any) -> bool:
        """True for a node of a cluster. Raises StoreAway for a server that is too old."""
        try:
            facts = client.info("server")
        except BaseException:
            client.close()
            raise
        version = str(facts["redis_version"])
        if tuple(map(int, version.split(".")[:2])) < _LEAST_VERSION:
            client.close()
            raise StoreAway(
                f"{self._address.url} is Redis {version}; 7.0 or newer is needed, or Valkey"
            )
        return bool(facts.get("redis_mode") == "cluster")
