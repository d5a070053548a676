"""The name MODULE:CLASS of a model, and what was probably meant where another text came."""

from __future__ import annotations

import posixpath
import re

IMPORT_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def import_hint(text: str) -> str:
    """The spelling that works, as the end of an error message; "" where none is seen.

    A path of a file, the file's name, a dot in place of the colon and a dash are known.
    """
    module, colon, class_name = text.rpartition(":")
    if not colon:
        module, _, class_name = text.rpartition(".")
        if class_name in ("", "py"):
            return ""
    folder, file = posixpath.split(posixpath.normpath(module)) if "/" in module else ("", module)
    name = file.removesuffix(".py")
    advice = ""
    if folder.startswith(("/", "~", "..")):
        advice = f" with {folder} as the current directory or in BATCHPOOL_MODEL_PATH"
        folder = ""
    name = ".".join(part for part in (*folder.split("/"), name) if part)
    if "-" in name:
        name = name.replace("-", "_")
        advice += "; a module's name has no '-', so the file or folder must be named so"
    meant = f"{name}:{class_name}"
    if not IMPORT_NAME.fullmatch(meant) or meant == text:
        return ""
    return f"; write {meant}{advice}"


def import_file_hint(import_name: str) -> str:
    """The spelling that works where a module's name has the ending of its file; "" for any other.
    It is a legal name of a module in a package, so only the look-up tells that none is meant."""
    module, _, class_name = import_name.partition(":")
    if not module.endswith(".py"):
        return ""
    return f"; write {module.removesuffix('.py')}:{class_name}"
