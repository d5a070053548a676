"""The pool of a replica: one that runs on its machine, or one that it starts and stops itself."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from batchpool.bulk.own_pool import own_pool
from batchpool.client.call import socket_of
from batchpool.client.control import ask_status
from batchpool.core.errors import ConfigError, NotReady, PoolError, StartError

_POLL_S = 0.1
_DEVICES = "CUDA_VISIBLE_DEVICES"


@contextmanager
def node_pool(
    socket: str | None, serve: Sequence[str], gpus: Sequence[str], patience_s: float
) -> Iterator[str]:
    """The socket of a pool that is ready.

    serve: options of `batchpool serve` for a pool of its own, which sees these GPUs and no others;
    without them the pool at `socket` (None: the default one) is waited for, so many seconds.
    ConfigError where both are given, StartError where no pool gets ready.
    """
    if serve and socket is not None:
        raise ConfigError(
            f"socket={socket!r} names a running pool, and serve={list(serve)} starts one; one of"
            " them was expected"
        )
    if serve:
        with own_pool(serve, {_DEVICES: ",".join(gpus)}) as path:
            yield path
    else:
        path = socket_of(socket, None)
        wait_until_ready(path, patience_s)
        yield path


def wait_until_ready(socket: str, patience_s: float) -> None:
    """Wait until the pool at this socket serves; StartError says what it waited for in vain."""
    until_s = time.monotonic() + patience_s
    while True:
        try:
            check_ready(socket)
            return
        except PoolError as error:
            if time.monotonic() >= until_s:
                raise StartError(
                    f"no pool that is ready within {patience_s:g} s: {error.message}; start one"
                    " there with `batchpool serve`, or let the replica start its own with"
                    ' serve=["--model", ...]'
                ) from error
        time.sleep(_POLL_S)


def check_ready(socket: str, model: str = "") -> None:
    """NotReady unless the pool at this socket is ready, and serves this model if one is named;
    PoolStopped where none listens."""
    status = ask_status(socket)
    if status["state"] != "ready":
        raise NotReady(f"the pool at {socket} is {status['state']}")
    if model and not status["models"].get(model, {}).get("ready"):
        raise NotReady(f"the pool at {socket} does not serve model {model!r}")
