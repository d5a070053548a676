"""The check that the process which serves a unix socket may be trusted with requests.

The kernel says who serves it. Root and the client's own user are trusted, and so is a user into
whose place nobody else could have come: no directory on the way to the socket is writable by
everybody, as /tmp is.
"""

from __future__ import annotations

import os
import pwd
import stat


def why_not_trusted(path: str, server_uid: int, own_uid: int) -> str:
    """Why a server of this user is not trusted at this path, "" if it is."""
    if server_uid in (0, own_uid):
        return ""
    open_to_all = _open_to_all(path)
    if not open_to_all:
        return ""
    user = _name_of(server_uid)
    return (
        f"the socket {path} is served by uid {server_uid}{user}; expected root or uid {own_uid},"
        f" since everybody may put a socket below {open_to_all}: let the pool run as one of them,"
        " or have its socket in a directory that only its user may write"
    )


def _open_to_all(path: str) -> str:
    """The first directory on the way to a path that everybody may write; "" if there is none."""
    folder = os.path.dirname(os.path.realpath(path))
    while True:
        try:
            mode = os.stat(folder).st_mode
        except OSError:
            return folder
        if mode & stat.S_IWOTH:
            return folder
        above = os.path.dirname(folder)
        if above == folder:
            return ""
        folder = above


def _name_of(uid: int) -> str:
    try:
        return f" ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return ""
