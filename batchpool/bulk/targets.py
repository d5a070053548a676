"""Targets: the files that a run writes, which are none of those that it reads."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from batchpool.bulk.lines import STDIN
from batchpool.core.errors import ConfigError, StartError

_STDIN_FD, _STDOUT_FD = 0, 1


def check_out(inputs: Iterable[str], out: str) -> None:
    """ConfigError where OUT is no file, is one of the inputs, or has one of them in its parts.

    inputs: as the command line has them. Links and other spellings of a path count as the
    file that they lead to.
    """
    if out == STDIN:
        _check_none_is(inputs, _identity(_STDOUT_FD), "stdout")
        return
    if os.path.isdir(out):
        raise ConfigError(f"-o {out} is a folder; the path of a file was expected")
    if os.path.exists(out) and not os.path.isfile(out):
        raise ConfigError(f"-o {out} is no regular file; the path of one was expected, or -")
    _check_none_is(inputs, _identity(out), f"-o {out}")
    parts = f"{out}.parts"
    if os.path.exists(parts) and not os.path.isdir(parts):
        raise ConfigError(
            f"{parts} is no folder, and the parts of -o {out} go there; move it, or choose another"
            " path"
        )
    for path in inputs:
        if path != STDIN and is_below(path, parts):
            raise ConfigError(f"{path} is one of the inputs, and -o {out} writes to {parts}")


def check_files(files: Iterable[str], out: str, errors: str) -> None:
    """ConfigError where one of the files below a folder is OUT or the file of bad rows."""
    if out != STDIN:
        _check_none_is(files, _identity(out), f"-o {out}")
    if errors:
        _check_none_is(files, _identity(errors), f"--errors {errors}")


def check_errors(inputs: Iterable[str], out: str, errors: str) -> None:
    """ConfigError where the file of bad rows is no file, is an input or is OUT, or has its parts
    around it. errors: "" for stderr."""
    said = f"--errors {errors}"
    if not errors or (out == STDIN and os.path.exists(errors) and not os.path.isfile(errors)):
        return  # /dev/null and pipes are written to, where nothing is renamed
    if os.path.isdir(errors):
        raise ConfigError(f"{said} is a folder; the path of a file was expected")
    if os.path.exists(errors) and not os.path.isfile(errors):
        raise ConfigError(f"{said} is no regular file; the path of one was expected")
    _check_none_is(inputs, _identity(errors), said)
    _check_none_is(inputs, _identity(beside(errors)), f"{beside(errors)}, written for {said},")
    if out == STDIN:
        return
    same = os.path.realpath(errors) == os.path.realpath(out)
    if same or (_identity(errors) or 0) == (_identity(out) or 1):
        raise ConfigError(f"{said} is the output, too; choose another path for one of them")
    if is_below(errors, f"{out}.parts"):
        raise ConfigError(f"{said} lies in {out}.parts, which goes at the end; choose another path")


def written_paths(out: str, errors: str) -> list[str]:
    """All that a run writes, files and the folder of its parts; nothing of stdout and stderr."""
    of_out = [] if out == STDIN else [out, f"{out}.parts"]
    return of_out + ([errors, beside(errors)] if errors else [])


def beside(errors: str) -> str:
    """The file that becomes the one of bad rows when it is whole."""
    return f"{errors}.tmp"


def _check_none_is(inputs: Iterable[str], target: tuple[int, int] | None, said: str) -> None:
    if target is None:
        return
    for path in inputs:
        if _identity(_STDIN_FD if path == STDIN else path) == target:
            raise ConfigError(
                f"{said} is one of the inputs, {path}, and would be lost; choose another path"
            )


def check_free(path: str, flag: str) -> None:
    """StartError where there is a regular file already, which nobody said is to be replaced."""
    if os.path.isfile(path):
        raise StartError(f"{path} exists; --restart replaces it, or choose another {flag}")


def _identity(path: str | int) -> tuple[int, int] | None:
    """Device and inode of a regular file; None for what is none, or is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def is_below(path: str, folder: str) -> bool:
    """True if a path is a folder or lies anywhere below it, whatever the spelling of both."""
    return f"{os.path.realpath(path)}{os.sep}".startswith(f"{os.path.realpath(folder)}{os.sep}")
