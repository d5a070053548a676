"""The directory of the control socket and the lock file in it: made here, or of a trusted owner.

Whoever may write the directory may put another socket in the place of ours, or lead the lock to
another file. So the directory belongs to root or to the user who starts the pool, nobody else may
write it (or it is sticky, as /tmp, where names belong to their owners), and symbolic links that
somebody else made are not followed.
"""

from __future__ import annotations

import errno
import os
import stat

from batchpool.core.errors import StartError


def prepare_folder(folder: str, flag: str = "--socket") -> None:
    """Make the directory if there is none; StartError if others could take our place in it.

    flag: the one that chooses another place, for messages.
    """
    if not os.path.lexists(folder):
        os.mkdir(folder, 0o755)  # one level: a mistyped path must not grow a tree
    link, found = os.lstat(folder), os.stat(folder)
    uid = os.geteuid()
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, uid):
        raise StartError(
            f"{folder} is a symbolic link of uid {link.st_uid}; expected a directory of uid {uid}"
            f" or root: remove it, or choose another place with {flag}"
        )
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
    if found.st_uid not in (0, uid):
        raise StartError(
            f"the directory {folder} belongs to uid {found.st_uid}, who could put another socket"
            f" there; expected uid {uid} or root: remove it, or choose another place with {flag}"
        )
    others = stat.S_IWOTH if found.st_gid == os.getegid() else stat.S_IWOTH | stat.S_IWGRP
    if found.st_mode & others and not found.st_mode & stat.S_ISVTX:
        raise StartError(
            f"the directory {folder} has mode {stat.S_IMODE(found.st_mode):04o}: others could put"
            f" another socket there; run `chmod go-w {folder}`, or choose another place with"
            f" {flag}"
        )


def open_lock(path: str, flag: str = "--socket") -> int:
    """A descriptor of the lock file, made if there is none; StartError if it is somebody else's or
    no file."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as exc:
        if exc.errno != errno.ELOOP:
            raise
        raise StartError(
            f"the lock file {path} is a symbolic link, which is not followed; remove it"
        ) from None
    found, uid = os.fstat(fd), os.geteuid()
    if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, uid):
        os.close(fd)
        raise StartError(
            f"the lock file {path} is {stat.filemode(found.st_mode)} of uid {found.st_uid};"
            f" expected a file of uid {uid}: remove it, or choose another place with {flag}"
        )
    return fd
