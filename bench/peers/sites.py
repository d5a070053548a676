"""Peers from folders of wheels, for a machine that reaches no index and makes no environments.

    FOLDER/PEER/*.whl    all that the peer needs beyond torch and numpy
    FOLDER/bin/wrk       the program, and in FOLDER/lib the libraries it was linked with

`collect` fills such a folder, for the Python of the other machine; there `Sites` unpacks each
peer's wheels into a folder of its own, which its servers search before what that interpreter has.
Torch, numpy and what torch itself needs are that interpreter's.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peers.envs import Envs, commanded, requirements
from bench.peers.roster import INSTALLED, PEERS, Peer

_WITH_TORCH = frozenset(
    {"torch", "numpy", "filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "sympy"}
)
_GLIBC = (39, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)  # pip takes these by name, not by order
_PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in _GLIBC),
    *(f"manylinux{year}_x86_64" for year in ("2014", "2010", "1")),
    "any",
)


@dataclass(frozen=True)
class Sites(Envs):
    """unpacked: a folder with one a peer, and bin and lib of wrk."""

    unpacked: Path = Path()

    def python(self, peer: Peer) -> Path:
        return Path(sys.executable)

    def missing(self, peer: Peer) -> str:
        if peer.env and not (self.unpacked / peer.env).is_dir():
            why = self.unpacked / f"{peer.env}.failed"
            return why.read_text().strip() if why.exists() else f"no wheels in {self.folder}"
        return self.lacks_program(peer)

    def search(self, peer: Peer) -> list[str]:
        return [str(self.unpacked / peer.env)] if peer.env else super().search(peer)

    def surroundings(self, peer: Peer) -> dict[str, str]:
        """Mosec looks for its binary where Python would put scripts, also those of a user."""
        return {"PYTHONUSERBASE": str(self.unpacked / peer.env)} if peer.env else {}

    def programs(self, peer: Peer) -> Path:
        return self.unpacked / peer.env / "bin" if peer.env else Path(sys.executable).parent

    def wrk(self) -> str:
        carried = self.unpacked / "bin" / "wrk"
        return str(carried) if carried.exists() else super().wrk()

    def wrk_libraries(self) -> str:
        return str(self.unpacked / "lib")


@contextmanager
def unpacked(folder: Path) -> Iterator[Sites]:
    """What cannot be unpacked is a line of the table, as what is not there."""
    with tempfile.TemporaryDirectory(prefix="bp-sites-") as made:
        target = Path(made)
        for wheels in sorted(path for path in folder.iterdir() if any(path.glob("*.whl"))):
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
            pip += ["--no-cache-dir", "--target", str(target / wheels.name)]
            try:
                commanded(*pip, *(str(wheel) for wheel in sorted(wheels.glob("*.whl"))))
            except RuntimeError as error:
                shutil.rmtree(target / wheels.name, ignore_errors=True)
                (target / f"{wheels.name}.failed").write_text(str(error))
        for name in ("bin", "lib"):
            if (folder / name).is_dir():
                shutil.copytree(folder / name, target / name)
        if (wrk := target / "bin" / "wrk").exists():
            wrk.chmod(0o755)  # a copy to another machine may lose it
        yield Sites(folder, target)


# -- filling the folder -----------------------------------------------------------------------


def carried(peer: Peer) -> list[str]:
    """Its pinned packages but for what comes with torch."""
    lines = requirements(peer.env).read_text().splitlines()
    return [line for line in lines if line.partition("==")[0].lower() not in _WITH_TORCH]


def collect(names: Sequence[str], folder: Path, python: str) -> None:
    """Wheels for a Python as "3.12" on x86-64, and wrk. RuntimeError: one is not to be had."""
    platforms = [word for name in _PLATFORMS for word in ("--platform", name)]
    for name in names or INSTALLED:
        peer = PEERS[name]
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        pip += ["--python-version", python, "--implementation", "cp", *platforms]
        commanded(*pip, "-d", str(folder / peer.env), *carried(peer))
        print(f"  {name}: {_mib(folder / peer.env):.1f} MiB", flush=True)
    wrk = Envs().wrk()
    for kind, paths in (("bin", [wrk]), ("lib", libraries(wrk))):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for path in paths:
            shutil.copy(path, folder / kind)
        print(f"  {kind}: {_mib(folder / kind):.1f} MiB", flush=True)


def libraries(program: str) -> list[str]:
    """What a program is linked with, less the parts of the C library, which belong to a machine."""
    told = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    of_libc = re.compile(r"lib(c|m|pthread|dl|rt)\.so|ld-linux")
    return [path for path in re.findall(r"=> (/\S+)", told) if not of_libc.search(path)]


def _mib(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.iterdir()) / 2**20
