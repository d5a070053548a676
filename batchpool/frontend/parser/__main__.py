"""The parser process: parses the bodies that its front end sends, until that one ends."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import traceback
from collections.abc import Sequence
from functools import lru_cache
from multiprocessing.connection import Connection

from batchpool.core.errors import PoolError, TooLarge
from batchpool.frontend.parser.messages import (
    ParseJob,
    decoded_spec,
    receive_job,
    send_error,
    send_failure,
    send_request,
)
from batchpool.process.heap import limited_memory, return_free_memory, return_large_blocks
from batchpool.wire.codec import Codec

_MODELS = 16  # whose codecs are kept
# A number takes at most 32 bytes as a value in a list, and two in the body.
_MOST_FOLD = 20
_SPARE_BYTES = 256 << 20


@lru_cache(_MODELS)
def _codec(spec: bytes) -> Codec:
    return Codec(decoded_spec(spec))


def parse(connection: Connection, job: ParseJob, body: bytes) -> None:
    """Parse one body and send the reply. A body of which too much memory would be made is too
    large."""
    most_bytes = _SPARE_BYTES + _MOST_FOLD * len(body)
    try:
        with limited_memory(most_bytes):
            request = _codec(job.spec).parse(job.headers, body)
    except MemoryError:
        send_error(
            connection,
            TooLarge(
                f"the {len(body)} bytes of text in the body would take more than"
                f" {most_bytes >> 20} MiB as values; send numbers as binary data"
            ),
        )
    except PoolError as exc:
        send_error(connection, exc)
    except Exception:
        send_failure(connection, traceback.format_exc())
    else:
        send_request(connection, request)


def main(argv: Sequence[str]) -> int:
    """Parse bodies from the socket whose descriptor is the argument; returns the exit status."""
    # A signal to the whole group is the supervisor's business; this process ends with the socket.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    return_large_blocks()
    gc.set_threshold(50_000, 20, 20)  # JSON makes millions of lists at once
    connection = Connection(int(argv[0]))
    with contextlib.suppress(EOFError, OSError):
        while True:
            parse(connection, *receive_job(connection))
            return_free_memory()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
