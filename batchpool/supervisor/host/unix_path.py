"""A path of a unix socket that one pool has: a lock file beside it tells other pools.

So a socket that is found at the path belonged to a pool that is dead, unless another program
listens there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat

from batchpool.core.errors import StartError
from batchpool.supervisor.host.socket_folder import open_lock, prepare_folder


class UnixPath:
    """A path, locked. what: the socket's use, for messages. flag: the one that chooses the path.

    Raises StartError if another pool has it, or where others could put a socket in its place.
    """

    def __init__(self, path: str, what: str, flag: str) -> None:
        self.path = path
        try:
            prepare_folder(os.path.dirname(path) or ".", flag)
            self._lock = open_lock(path + ".lock", flag)
        except OSError as exc:
            raise StartError(
                f"cannot make {what} {path}: {exc.strerror}; choose another place with {flag}"
            ) from exc
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise StartError(
                f"another pool serves with {what} {path};"
                f" stop that one or choose another with {flag}"
            ) from None

    def listen(
        self, sock: socket.socket, backlog: int, *, mode: int = 0o600, gid: int = -1
    ) -> None:
        """Let a socket listen at the path, in place of a dead one. mode, gid: who may connect.

        Raises StartError for what is no socket, and for one on which another program listens; then
        the socket is closed, and the path is nobody's.
        """
        try:
            self._listen(sock, backlog, mode, gid)
        except BaseException:
            sock.close()
            self._unlock()
            raise

    def _listen(self, sock: socket.socket, backlog: int, mode: int, gid: int) -> None:
        try:
            if os.path.lexists(self.path):
                if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
                    raise StartError(f"{self.path} exists and is not a socket; it is left alone")
                if self._is_alive(sock.type):
                    raise StartError(f"another program listens on {self.path}; it is left alone")
                os.unlink(self.path)
            mask = os.umask(0o177)
            try:
                sock.bind(self.path)
            finally:
                os.umask(mask)
            if gid >= 0:
                os.chown(self.path, -1, gid)
            os.chmod(self.path, mode)
            sock.listen(backlog)
        except OSError as exc:
            raise StartError(f"cannot bind {self.path}: {exc.strerror or exc}") from exc

    def _is_alive(self, kind: int) -> bool:
        with socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK) as probe:
            try:
                probe.connect(self.path)
            except BlockingIOError:  # its backlog is full
                return True
            except OSError:
                return False
            return True

    def release(self) -> None:
        """Remove the socket and the lock file."""
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.lstat(self.path).st_mode):  # what somebody put there instead stays
                os.unlink(self.path)
        self._unlock()

    def _unlock(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.path + ".lock")
        os.close(self._lock)
