"""`batchpool status`: a running pool's account of itself."""

from __future__ import annotations

import argparse
import json

from batchpool.cli.configured import pool_socket
from batchpool.cli.table import status_text
from batchpool.core.errors import PoolError, StartError


def status(args: argparse.Namespace) -> int:
    from batchpool.client.control import ask_status

    path = pool_socket(args)
    try:
        found = ask_status(path)
    except PoolError as exc:
        raise StartError(exc.message) from None
    except OSError as exc:
        raise StartError(f"no pool answers at {path}: {exc}") from None
    print(json.dumps(found, indent=2) if args.json else status_text(found))
    return 0
