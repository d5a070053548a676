"""Reading of files that hold secrets: what is no file is not waited for, and who may read it."""

from __future__ import annotations

import logging
import os
import stat

from batchpool.core.errors import ConfigError

_LOG = logging.getLogger("batchpool.credentials")
_MOST_BYTES = 1 << 20


def read_secret(key: str, path: str, *, warn: bool = True) -> bytes:
    """The bytes of a file. key: of the configuration, for messages.

    Raises ConfigError where the file cannot be read, is no regular file, has more than 1 MiB, or
    may be written by others than its owner. warn: log that everybody may read it.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as exc:
        raise ConfigError(f"{key} = {path!r}: cannot read it: {exc.strerror}") from None
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise ConfigError(f"{key} = {path!r}: it is no regular file")
    with os.fdopen(fd, "rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"{key} = {path!r}: it has more than {_MOST_BYTES} bytes")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"{key} = {path!r}: its mode {stat.S_IMODE(found.st_mode):04o} lets others write it;"
            f" run `chmod 600 {path}`"
        )
    if warn and found.st_mode & stat.S_IROTH:
        _LOG.warning(
            "%s = %r: its mode %04o lets every user read it; run `chmod 600 %s`",
            key, path, stat.S_IMODE(found.st_mode), path,
        )  # fmt: skip
    return content
