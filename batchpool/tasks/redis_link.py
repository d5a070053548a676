"""The connection to the server: commands in one round trip, and its errors as those of a store."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from batchpool.tasks.redis_address import StoreAddress
from batchpool.tasks.redis_clients import Clients, redis
from batchpool.tasks.redis_hints import advice
from batchpool.tasks.redis_keys import PARTITION_PREFIX
from batchpool.tasks.redis_scripts import Script
from batchpool.tasks.store import StoreAway, StoreFull

_LOG = logging.getLogger("batchpool.tasks")
_ERRORS = (
    redis.exceptions.RedisError,
    redis.exceptions.RedisClusterException,  # no RedisError: a cluster without some of its nodes
    OSError,
    ValueError,
)
_PAUSE_S = 0.5  # after a failure, in which nobody waits for another one
_MOVED = (
    redis.exceptions.MovedError,
    redis.exceptions.AskError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
)


@dataclass(frozen=True, slots=True)
class Command:
    """One command. key: by which a cluster knows its server. words: all of it; of a script, its
    arguments for this key. again: the call is repeated, whatever the link knows; scripts are told.
    """

    key: str
    words: tuple[Any, ...]
    script: Script | None = None
    again: bool = False


class Link:
    """Commands to one server, or one cluster. It is used by one thread.

    The connection is made when it is needed, and again after it broke. Raises StoreFull where the
    server takes no more, StoreAway where it cannot be used.
    """

    def __init__(self, address: StoreAddress) -> None:
        self._address = address
        self._clients = Clients(address)
        self._client: Any = None
        self._is_cluster = False
        self._resume_s = 0.0

    def run(self, commands: Sequence[Command], *, errors: str = "raise") -> list[Any]:
        """The replies, in order. A broken connection is tried once more, and scripts are told.

        errors: "return" gives a StoreFull in place of the reply of the command it is of.
        """
        if not commands:
            return []
        if time.monotonic() < self._resume_s:
            raise StoreAway(f"{self._address.url} could not be used a moment ago")
        try:
            try:
                replies = self._send(commands, again=b"0")
            except redis.exceptions.ConnectionError:
                self.close()
                replies = self._send(commands, again=b"1")
        except _ERRORS as exc:
            self.close()
            self._resume_s = time.monotonic() + _PAUSE_S
            raise self._away(exc) from exc
        self._replace_foreign(commands, replies)
        found = [
            self._judged(command, reply) for command, reply in zip(commands, replies, strict=True)
        ]
        for reply in found:
            if isinstance(reply, StoreAway) or (errors == "raise" and isinstance(reply, StoreFull)):
                raise reply
        return found

    def _away(self, exc: BaseException) -> StoreAway:
        text = str(exc).rstrip(".")
        return StoreAway(f"{self._address.url}: {text}{advice(exc, self._address)}")

    def _replace_foreign(self, commands: Sequence[Command], replies: list[Any]) -> None:
        """Drop values of foreign types that stand in the place of a partition's own, as scripts do,
        and ask again."""
        foreign = [
            number for number, reply in enumerate(replies)
            if isinstance(reply, redis.exceptions.ResponseError)
            and str(reply).startswith("WRONGTYPE")
            and commands[number].script is None
            and commands[number].key.startswith(PARTITION_PREFIX)
        ]  # fmt: skip
        for number in foreign:
            key = commands[number].key
            _LOG.error(
                "%s: %s has a value of a foreign type: it is dropped", self._address.url, key
            )
            try:
                *_, replies[number] = self._send(
                    [Command(key, ("UNLINK", key)), commands[number]], again=b"0"
                )
            except _ERRORS as exc:
                replies[number] = exc

    def _judged(self, command: Command, reply: Any) -> Any:
        """A reply, or the store's error that it stands for."""
        if not isinstance(reply, Exception):
            return reply
        text = f"{self._address.url}: {reply}"
        full = isinstance(reply, redis.exceptions.OutOfMemoryError)
        if full or str(reply).startswith(("OOM", "MISCONF")):
            return StoreFull(text)
        if not isinstance(reply, redis.exceptions.ConnectionError):
            self.close()  # READONLY and the like: another server may be the right one by now
            text += f" (of {command.key}){advice(reply, self._address)}"
        return StoreAway(text)

    def _send(self, commands: Sequence[Command], again: bytes) -> list[Any]:
        client = self._connected()
        if not self._is_cluster:
            return _pipelined(client, commands, again, joined=True)
        by_node: dict[str, tuple[Any, list[int]]] = {}
        for number, command in enumerate(commands):
            node = client.get_node_from_key(command.key)
            by_node.setdefault(node.name, (node, []))[1].append(number)
        replies: list[Any] = [None] * len(commands)
        for node, numbers in by_node.values():
            server = client.get_redis_connection(node)
            found = _pipelined(server, [commands[n] for n in numbers], again)
            for number, reply in zip(numbers, found, strict=True):
                replies[number] = reply
        for number, reply in enumerate(replies):
            if isinstance(reply, _MOVED):  # the client follows, and learns the slots anew
                try:
                    call = [commands[number]]
                    found = client.execute_command(*_words(call, again, whole=True))
                    (replies[number],) = _replies_of(call, found)
                except redis.exceptions.ResponseError as exc:
                    replies[number] = exc
        return replies

    # -- connecting ---------------------------------------------------------------------

    def _connected(self) -> Any:
        if self._client is None:
            self._client, self._is_cluster = self._clients.open()
        return self._client

    def server_ms(self) -> int:
        """Unix time of the server, or of one of them."""
        try:
            client = self._connected()
            if self._is_cluster:
                client = client.get_redis_connection(client.get_primaries()[0])
            seconds, microseconds = client.time()
        except _ERRORS as exc:
            self.close()
            raise self._away(exc) from exc
        return int(seconds) * 1000 + int(microseconds) // 1000

    def server_setting(self, name: str) -> str | None:
        """A setting of the server; None where it does not say."""
        try:
            client = self._connected()
            if self._is_cluster:
                client = client.get_redis_connection(client.get_primaries()[0])
            try:
                found = client.config_get(name)
            except redis.exceptions.ResponseError:
                return None
        except _ERRORS as exc:
            raise self._away(exc) from exc
        for key, value in found.items():
            if _text(key) == name:
                return _text(value)
        return None

    def close(self) -> None:
        """Let go of the connection; the next command makes another one."""
        client, self._client = self._client, None
        if client is not None:
            try:
                client.close()
            except _ERRORS:
                return  # it had gone


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _calls(commands: Sequence[Command], *, joined: bool) -> list[list[int]]:
    """The positions of commands that are sent as one. joined: those of the same script are, which
    is then started once for all of its keys; a cluster takes no keys of several slots."""
    found: list[list[int]] = []
    by_script: dict[tuple[str, bool], list[int]] = {}
    for number, command in enumerate(commands):
        alike = (command.script.digest, command.again) if joined and command.script else None
        if alike is not None and alike in by_script:
            by_script[alike].append(number)
            continue
        found.append([number])
        if alike is not None:
            by_script[alike] = found[-1]
    return found


def _words(call: Sequence[Command], again: bytes, *, whole: bool = False) -> list[Any]:
    """The words that are sent for commands that go as one. whole: with the text of a script that
    the server does not know."""
    first = call[0]
    script = first.script
    if script is None:
        return list(first.words)
    start = ("EVAL", script.text) if whole else ("EVALSHA", script.digest)
    words = [*start, len(call), *(command.key for command in call)]
    words.append(b"1" if first.again else again)
    for command in call:
        words.append(len(command.words))
        words += command.words
    return words


def _replies_of(call: Sequence[Command], found: Any) -> Sequence[Any]:
    """The reply to each of these commands that were sent as one."""
    if call[0].script is None or isinstance(found, Exception):
        return [found] * len(call)
    replies: Sequence[Any] = found
    return replies


def _pipelined(
    client: Any, commands: Sequence[Command], again: bytes, *, joined: bool = False
) -> list[Any]:
    """The replies of one server; an exception in the place of one that it refused."""
    places = _calls(commands, joined=joined)
    calls = [[commands[number] for number in numbers] for numbers in places]
    pipeline = client.pipeline(transaction=False)
    for call in calls:
        pipeline.execute_command(*_words(call, again))
    found: list[Any] = pipeline.execute(raise_on_error=False)
    unknown = [
        number for number, reply in enumerate(found)
        if isinstance(reply, redis.exceptions.NoScriptError)
    ]  # fmt: skip
    if unknown:
        for number in unknown:
            pipeline.execute_command(*_words(calls[number], again, whole=True))
        for number, reply in zip(unknown, pipeline.execute(raise_on_error=False), strict=True):
            found[number] = reply
    replies: list[Any] = [None] * len(commands)
    for numbers, call, reply in zip(places, calls, found, strict=True):
        for number, one in zip(numbers, _replies_of(call, reply), strict=True):
            replies[number] = one
    return replies
