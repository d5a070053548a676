"""The service manager's ear: systemd's notification protocol, sd_notify(3), by hand.

One message is one datagram of lines NAME=value to the unix socket in $NOTIFY_SOCKET, a path, or
with @ in front an abstract name. Without the variable nothing is ever said. Whoever reads the
variables takes them out of the environment: children have nothing to tell.
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
    """Messages to the service manager. address: as in $NOTIFY_SOCKET, "" for nobody.

    watchdog_ns: within which time it expects WATCHDOG=1 again and again; 0 is never. Nothing
    here waits and nothing raises: a failure is logged once, and the pool does without.
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
        """Whether anybody listens."""
        return self._sock is not None

    def tell(self, **words: str | int) -> None:
        """Send one message. A service manager that is busy gets it with the next `flush`."""
        if self._sock is not None:
            lines = {name: " ".join(str(value).split()) for name, value in words.items()}
            self._unsent |= lines
            self.flush()

    def flush(self) -> None:
        """Send what could not be sent before."""
        if self._sock is None or not self._unsent:
            return
        message = "\n".join(f"{name}={value}" for name, value in self._unsent.items())
        # What the kernel calls an abstract name begins with a zero byte.
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
    """The notifier that the environment asks of process `pid`; its variables are taken out."""
    address, usec, whose = (env.pop(name, "") for name in _VARIABLES)
    watched = usec.isdecimal() and whose in ("", str(pid))
    return Notifier(address, int(usec) * 1000 if watched else 0)
