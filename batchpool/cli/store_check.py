"""A look at the server of `tasks_store` for `batchpool check`, which changes nothing there."""

from __future__ import annotations

import os

from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import StartError
from batchpool.tasks.store import StoreAway


def check_task_store(server: ServerConfig) -> list[str]:
    """The meaning of the server's own settings for accepted tasks, a line each.

    Raises StartError where it cannot be reached, or refuses this user.
    """
    try:
        from batchpool.tasks.redis_address import store_address
        from batchpool.tasks.redis_durability import durability

        address = store_address(server.tasks_store, server.tasks_store_password_file, os.environ)
        return durability(address)
    except StoreAway as exc:
        raise StartError(f"the store of tasks cannot be used: {exc}") from None
