"""Files of lines that are none, by their first bytes: packed ones, other encodings, tables."""

from __future__ import annotations

from batchpool.core.errors import StartError

# What a file is that begins so, and what makes lines of it.
_SIGNATURES = (
    (b"\x1f\x8b", "is packed by gzip: unpack it, or read it as a pipe, as in <(zcat {path})"),
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


def check_lines(path: str) -> None:
    """StartError for a file that holds no lines of UTF-8, which says what it is and what helps. A
    run would take it for bad rows, or for rows that it has not.

    path: of a regular file.
    """
    try:
        with open(path, "rb") as file:
            first = file.read(_LONGEST)
    except OSError as exc:
        raise StartError(f"cannot read {path}: {exc.strerror}") from None
    for start, said in _SIGNATURES:
        if first.startswith(start):
            raise StartError(f"{path} {said.format(path=path)}")
