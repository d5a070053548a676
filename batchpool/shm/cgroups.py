"""The cgroups this process is in, version 1 and 2, each with all its parents.

A limit of a cgroup holds for everything below it, so whoever asks what is allowed must
look at every level. In a container without a cgroup namespace /proc/self/cgroup tells
the path as the host sees it and mountinfo tells which part of it is mounted here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class CgroupLevel:
    """One cgroup on the way from ours to the top. version: 1 or 2; name: its path as seen here."""

    version: int
    path: Path
    name: str

    def read(self, file: str) -> str:
        """The text of one of its files, stripped; "" where there is no such file."""
        try:
            return (self.path / file).read_text().strip()
        except OSError:
            return ""

    def read_number(self, file: str) -> int | None:
        """The number in one of its files; None for "max", for -1 and for no such file."""
        text = self.read(file)
        return int(text) if text.isascii() and text.isdigit() else None

    def read_field(self, file: str, field: str) -> int:
        """The number behind a word in a file of `word number` lines; 0 where it is not there."""
        for line in self.read(file).splitlines():
            word, _, number = line.partition(" ")
            if word == field and number.isascii() and number.isdigit():
                return int(number)
        return 0


def cgroup_levels(controller: str, proc: Path = PROC) -> list[CgroupLevel]:
    """Every cgroup that may limit us for `controller` ("memory", "cpu"), ours first.

    Version 2 levels are listed whether or not the controller is enabled there: it is not
    where its files are missing. An unreadable /proc gives an empty list.
    """
    try:
        memberships = (proc / "self" / "cgroup").read_text().splitlines()
        mounts = (proc / "self" / "mountinfo").read_text().splitlines()
    except OSError:
        return []
    levels: list[CgroupLevel] = []
    for line in memberships:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            version = 2
        elif controller in controllers.split(","):
            version = 1
        else:
            continue
        found = _mount_of(version, controller, mounts)
        if found is not None:
            levels += _levels_of(version, path, *found)
    return levels


def _mount_of(version: int, controller: str, mounts: list[str]) -> tuple[str, Path] | None:
    """(path inside the hierarchy, mount point) of the hierarchy that has the controller."""
    for line in mounts:
        place, dash, filesystem = line.partition(" - ")
        fields, kinds = place.split(" "), filesystem.split(" ")
        if not dash or len(fields) < 5 or len(kinds) < 3:
            continue
        if version == 2 and kinds[0] == "cgroup2":
            return _unescaped(fields[3]), Path(_unescaped(fields[4]))
        if version == 1 and kinds[0] == "cgroup" and controller in kinds[2].split(","):
            return _unescaped(fields[3]), Path(_unescaped(fields[4]))
    return None


def _levels_of(version: int, path: str, root: str, mount: Path) -> list[CgroupLevel]:
    root = root.rstrip("/")
    if path != root and not path.startswith(root + "/"):
        path = root  # our cgroup is outside of what is mounted here; its top still limits us
    names = [part for part in path[len(root) :].split("/") if part]
    if ".." in names:
        names = []
    return [
        CgroupLevel(version, mount.joinpath(*names[:depth]), "/" + "/".join(names[:depth]))
        for depth in range(len(names), -1, -1)
    ]


def _unescaped(text: str) -> str:
    """mountinfo writes blanks and backslashes as octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
