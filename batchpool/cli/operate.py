"""`batchpool reload` and `batchpool drain`, the operations on a running pool."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeVar

from batchpool.cli.config_source import pool_socket
from batchpool.cli.reload_progress import shown_progress
from batchpool.core.errors import PoolError, StartError

_Reply = TypeVar("_Reply")
LONGEST_S = 86400.0
_POLL_S = 0.1  # between two queries of a drain's progress

RELOAD_HELP = "read the configuration and the models again without losing a request"
RELOAD_EPILOG = """\
The pool reads the file and the flags again that it was started with, and replaces its workers
one by one: a new one loads the model's code and weights as they are now, warms up, and takes over;
the old one stands by until every new one serves. If one of them fails, all old ones serve on as
before. It needs memory for both. While it lasts every request is answered.

Every key of [[model]] may change, and limits of time; models may come, go, and have other tensors.
Clients are then moved to other memory; rows that are under way are answered by the old workers,
which end when every client has moved, at the latest after drain_s. Certificates and the keys of
callers are read again from their files. What needs new sockets (host, port, uds, socket, frontends,
max_clients) is refused as a whole, with its name: restart the service for that. CONFIG.toml,
--socket and --port say here which pool is meant.

examples:
  batchpool reload                     the pool on port 8000
  batchpool reload batchpool.toml      the pool that this file configures
  kill -HUP PID                        the same, without waiting (PID: the supervisor's)
  batchpool reload --cancel            give up one that loads for too long: the old workers serve

"""
RELOAD_EXITS = (
    "done; with --no-wait: asked for",
    "failed and nothing changed, or nobody answers",
)
DRAIN_HELP = "take no new requests, and wait until those accepted are answered"
DRAIN_EPILOG = """\
New requests are refused with 503 `draining` and /v2/health/ready says 503, so that a load balancer
looks elsewhere; /v2/health/live stays 200. The pool stays up, models loaded, until it is stopped
or opened again. A reload works meanwhile.

examples:
  batchpool drain --timeout-s 60       before maintenance
  batchpool drain --undo               take requests again

"""
DRAIN_EXITS = (
    "every accepted request is answered; with --undo: it takes requests again",
    "rows were still under way after --timeout-s (the pool goes on draining), somebody else"
    "\n     has undone it, or nobody answers",
)


def reload(args: argparse.Namespace) -> int:
    from batchpool.client.control import ask_cancel, ask_reload

    if args.cancel:
        print(f"reload {_request(ask_cancel, pool_socket(args))}")
        return 0
    path = pool_socket(args)
    waits_at_terminal = not args.no_wait and sys.stderr.isatty()
    with shown_progress(path) if waits_at_terminal else nullcontext():
        done, text = _request(ask_reload, path, wait=not args.no_wait)
    if done:
        print(f"reload {text}")
        return 0
    raise StartError(f"reload failed: {text}")


def drain(args: argparse.Namespace) -> int:
    from batchpool.client.control import ask_drain

    path = pool_socket(args)
    give_up_s = time.monotonic() + args.timeout_s
    draining, answered, rows = _request(ask_drain, path, on=not args.undo)
    if args.undo:
        print("the pool takes requests again")
        return 0
    shown = -1
    while draining and not answered:
        under_way = f"{rows} row{'s' * (rows != 1)}"
        if rows != shown:
            print(f"draining: {under_way} under way", flush=True)
            shown = rows
        if time.monotonic() >= give_up_s:
            raise StartError(f"{under_way} still under way after {args.timeout_s:g} s")
        time.sleep(_POLL_S)
        draining, answered, rows = _request(ask_drain, path, on=None)
    if not draining:
        raise StartError("the pool takes requests again: somebody else has undone the drain")
    print("drained: every accepted request is answered")
    return 0


def _request(ask: Callable[..., _Reply], path: str, **how: bool | None) -> _Reply:
    """The reply of the pool; StartError if it refuses the request or no pool replies."""
    try:
        return ask(path, **how)
    except PoolError as exc:
        raise StartError(exc.message) from None
    except OSError as exc:
        raise StartError(f"no pool answers at {path}: {exc}") from None
