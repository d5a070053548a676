"""systemd's notification protocol, sd_notify(3), without its library.

One message is one datagram of lines NAME=value to the unix socket in $NOTIFY_SOCKET, a path, or an
abstract name if it begins with @. Without the variable nothing is sent. The variables are taken out
of the environment, so that children do not notify.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import MutableMapping

from batchpool.shm.resource_errors import is_shortage

_LOG = logging.getLogger("batchpool.supervisor")
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Notifier:
    """Sends messages to the service manager. address: as in $NOTIFY_SOCKET, "" for none.

    watchdog_ns: the longest time between two WATCHDOG=1 that it expects; 0 if it expects none. No
    method waits or raises: a failure is logged once, and nothing is sent from then on.
    """

    def __init__(self, address: str = "", watchdog_ns: int = 0) -> None:
        self.address = address
        self.watchdog_ns = watchdog_ns if address else 0
        self._unsent: dict[str, str] = {}
        self._sock: socket.socket | None = None
        if address and address[0] not in "/@":
            self._give_up("it is neither a path nor an abstract name")
        elif address:
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sock.setblocking(False)

    def __bool__(self) -> bool:
        """True while messages are sent."""
        return self._sock is not None

    def notify(self, **words: str | int) -> None:
        """Send one message; if the socket is full, the next `flush` sends it."""
        if self._sock is not None:
            lines = {name: " ".join(str(value).split()) for name, value in words.items()}
            self._unsent |= lines
            self.flush()

    def flush(self) -> None:
        """Send the values that could not be sent before, the latest of each name."""
        if self._sock is None or not self._unsent:
            return
        message = "\n".join(f"{name}={value}" for name, value in self._unsent.items())
        # For the kernel an abstract name begins with a zero byte.
        to = "\0" + self.address[1:] if self.address[0] == "@" else self.address
        try:
            self._sock.sendto(message.encode("utf-8", "surrogateescape"), to)
        except OSError as exc:
            if exc.errno != errno.EAGAIN and not is_shortage(exc):
                self._give_up(exc.strerror or str(exc))
        else:
            self._unsent.clear()

    def _give_up(self, why: str) -> None:
        _LOG.warning("cannot notify the service manager at %s: %s", self.address, why)
        self.close()

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def take_notifier(env: MutableMapping[str, str], pid: int) -> Notifier:
    """The notifier that the environment asks of process `pid`; removes its variables."""
    address, usec, whose = (env.pop(name, "") for name in _VARIABLES)
    watched = usec.isdecimal() and whose in ("", str(pid))
    return Notifier(address, int(usec) * 1000 if watched else 0)
