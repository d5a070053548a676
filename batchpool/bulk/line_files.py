"""Files of lines as bytes: those packed by gzip are unpacked, and what is no lines is refused."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from batchpool.core.errors import StartError

_GZIP = b"\x1f\x8b"
# What a file is that begins so, and what makes lines of it.
_SIGNATURES = (
    (_GZIP, "is packed twice: unpack it (gunzip)"),
    (b"PK\x03\x04", "is a zip archive, or a workbook: unpack it, or save its table as CSV"),
    (b"\x28\xb5\x2f\xfd", "is packed by zstd: unpack it (zstd -d {path})"),
    (b"\xfd7zXZ", "is packed by xz: unpack it (xz -dk {path})"),
    (b"BZh", "is packed by bzip2: unpack it (bunzip2 -k {path})"),
    (b"\xff\xfe", "is UTF-16, and UTF-8 was expected: iconv -f UTF-16 -t UTF-8 {path}"),
    (b"\xfe\xff", "is UTF-16, and UTF-8 was expected: iconv -f UTF-16 -t UTF-8 {path}"),
    (b"PAR1", "is a Parquet file: --format parquet reads it"),
    (b"ARROW1", "is an Arrow file: --format arrow reads it"),
    (b"\x93NUMPY", "is a .npy file: --format npy reads it"),
    (b"\xd0\xcf\x11\xe0", "is an old workbook: save its table as CSV"),
)
_LONGEST = max(len(start) for start, _ in _SIGNATURES)
_BUFFER_BYTES = 1 << 20


def is_packed(path: str) -> bool:
    """True for a file packed by gzip, whatever its name. StartError where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_GZIP)) == _GZIP
    except OSError as exc:
        raise StartError(f"cannot read {path}: {exc.strerror}") from None


def check_lines(path: str) -> None:
    """StartError for a file that holds no lines of UTF-8, which says what it is and what helps. A
    run would take it for bad rows, or for rows that it has not.

    path: of a regular file.
    """
    with opened(path, packed=is_packed(path)) as file:
        first = file.read(_LONGEST)
    for start, said in _SIGNATURES:
        if first.startswith(start):
            raise StartError(f"{path} {said.format(path=path)}")


@contextmanager
def opened(path: str, *, packed: bool) -> Iterator[IO[bytes]]:
    """The bytes of a file; packed: by gzip. StartError where it cannot be read to its end."""
    try:
        with open(path, "rb", buffering=_BUFFER_BYTES) as file:
            if not packed:
                yield file
                return
            with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
                yield unpacked  # type: ignore[misc]  # which has all that is used of IO
    except (EOFError, zlib.error, gzip.BadGzipFile) as exc:
        raise StartError(
            f"{path} is no whole gzip file: {exc}; copy it anew, or unpack what there is of it"
        ) from None
    except OSError as exc:
        raise StartError(f"cannot read {path}: {exc.strerror}") from None
