"""The server's own settings, judged by what an answer 202 promises, for `batchpool check`."""

from __future__ import annotations

from batchpool.tasks.redis_address import StoreAddress
from batchpool.tasks.redis_keys import counts_key
from batchpool.tasks.redis_link import Command, Link
from batchpool.tasks.redis_scripts import script
from batchpool.tasks.store import StoreAway

_CHECK = ":check"  # a key of nobody's
_UNKNOWN = "unknown: the server does not tell its settings (CONFIG GET is refused)"


def durability(address: StoreAddress) -> list[str]:
    """The meaning of the server's settings, a line each.

    Raises StoreAway where it cannot be used.
    """
    link = Link(address)
    try:
        _check_rights(link, address)
        return persistence(
            link.server_setting("appendonly"),
            link.server_setting("appendfsync"),
            link.server_setting("maxmemory-policy"),
            link.server_setting("maxmemory"),
        )
    finally:
        link.close()


def _check_rights(link: Link, address: StoreAddress) -> None:
    """StoreAway where the server, or this user of it, cannot keep tasks."""
    (refused,) = link.run([Command(counts_key(0) + _CHECK, (), script("rights"))])
    if refused:
        names = ", ".join(name.decode().lower() for name in refused)
        raise StoreAway(
            f"{address.url}: this user may not use {names}; the documentation of tasks lists the"
            " rights that it needs (ACL SETUSER)"
        )


def persistence(
    appendonly: str | None, appendfsync: str | None, policy: str | None, maxmemory: str | None
) -> list[str]:
    """The meaning of these settings for tasks; None for one that is not known."""
    lines = []
    if appendonly is None or appendfsync is None:
        lines.append(f"persistence {_UNKNOWN}")
    elif appendonly != "yes":
        lines.append(
            "the server loses accepted tasks when it restarts (appendonly no): set appendonly yes"
            " and appendfsync always"
        )
    elif appendfsync == "always":
        lines.append("the server has an accepted task on its disk (appendfsync always)")
    elif appendfsync == "everysec":
        lines.append(
            "a crash of the server's machine loses the tasks of about the last second (appendfsync"
            " everysec): set appendfsync always to lose none"
        )
    else:
        lines.append(
            f"a crash of the server's machine loses accepted tasks (appendfsync {appendfsync}): set"
            " appendfsync always"
        )
    if policy is None:
        lines.append(f"eviction {_UNKNOWN}")
    elif policy != "noeviction" and maxmemory != "0":
        lines.append(
            "the server drops tasks and results when its memory is full (maxmemory-policy"
            f" {policy}): set noeviction, with which new tasks are refused instead"
        )
    return lines
