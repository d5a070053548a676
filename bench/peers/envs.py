"""The peers' virtual environments: made with pinned versions, looked for, complained about."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.roster import INSTALLED, PEERS, Peer
from bench.support.machine import version_of

DEFAULT = Path("~/.cache/batchpool-peers").expanduser()
_REQUIREMENTS = Path(__file__).with_name("requirements")
_READY = "installed"  # a file of an environment, a copy of the requirements it was made with


@dataclass(frozen=True)
class Envs:
    folder: Path = DEFAULT

    def python(self, peer: Peer) -> Path:
        if not peer.env:
            return Path(sys.executable)
        return self.folder / peer.env / "bin" / "python"

    def missing(self, peer: Peer) -> str:
        """Why it cannot run here; "" if it can."""
        if why := self.lacks_program(peer):
            return why
        if not peer.env:
            return ""
        made_with = self.folder / peer.env / _READY
        if not made_with.exists():
            failed = self.folder / f"{peer.env}.failed"
            said = f": {failed.read_text().strip()}" if failed.exists() else ""
            return f"not installed (python -m bench.peers setup {peer.name}){said}"
        if made_with.read_text() != requirements(peer.env).read_text():
            return f"installed with other versions (python -m bench.peers setup {peer.name})"
        return ""

    def lacks_program(self, peer: Peer) -> str:
        for program in peer.needs:
            if shutil.which(program) is None:
                return f"needs {program}, which is not on PATH"
        return ""

    def search(self, peer: Peer) -> list[str]:
        """Folders of packages that its Python does not know of itself; for what runs beside us in
        our interpreter they are ours."""
        ours = os.environ.get("PYTHONPATH", "")
        return ours.split(os.pathsep) if ours and not peer.env else []

    def version(self, peer: Peer) -> str:
        """Or "-"."""
        if not peer.env:
            return version_of(peer.package)
        code = f"from importlib import metadata; print(metadata.version({peer.package!r}))"
        done = subprocess.run(
            [str(self.python(peer)), "-c", code],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(self.search(peer))},
        )
        return done.stdout.strip() or "-"

    def library_folder(self) -> str:
        """Of libpython; "" if it is the system's, where the loader looks by itself and where much
        may lie that must not come before torch's own libraries."""
        folder = str(sysconfig.get_config_var("LIBDIR") or "")
        return "" if folder.startswith("/usr/lib") else folder

    def wrk(self) -> str:
        """SystemExit: there is none, and so no table."""
        found = shutil.which("wrk") or shutil.which(self.folder / "wrk" / "usr" / "bin" / "wrk")
        if found is None:
            raise SystemExit("wrk is missing: apt-get install wrk, or python -m bench.peers setup")
        return str(found)

    def wrk_libraries(self) -> str:
        """A folder of libraries that wrk looks into before the machine's; "" if none."""
        return ""

    # -- making them ----------------------------------------------------------------------

    def setup(self, names: Sequence[str]) -> bool:
        """True if all could be installed; a failure is kept for the table."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._unpack_wrk()
        failed = []
        for name in names or INSTALLED:
            peer = PEERS[name]
            if not self.missing(peer):
                print(f"  {name}: there already")
                continue
            why = self._make(peer)
            (self.folder / f"{peer.env}.failed").unlink(missing_ok=True)
            if why:
                (self.folder / f"{peer.env}.failed").write_text(why + "\n")
                failed.append(name)
            print(f"  {name}: {why or 'installed'}", flush=True)
        return not failed

    def _make(self, peer: Peer) -> str:
        """Why it could not be made; "" if it was."""
        folder = self.folder / peer.env
        pinned = requirements(peer.env)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            commanded(sys.executable, "-m", "venv", str(folder))
            commanded(str(self.python(peer)), "-m", "pip", "install", "-q", "-r", str(pinned))
        except RuntimeError as error:
            return str(error)
        (folder / _READY).write_text(pinned.read_text())
        return ""

    def _unpack_wrk(self) -> None:
        """Debian's package, unpacked here, where wrk is on no PATH; needs no rights."""
        target = self.folder / "wrk"
        if shutil.which("wrk") or target.exists():
            return
        with tempfile.TemporaryDirectory() as folder:
            try:
                commanded("apt-get", "download", "wrk", cwd=folder)
                (package,) = Path(folder).glob("wrk_*.deb")
                commanded("dpkg-deb", "-x", str(package), str(target))
                print("  wrk: unpacked")
            except (RuntimeError, OSError, ValueError) as error:
                print(f"  wrk: {error}")


def requirements(env: str) -> Path:
    return _REQUIREMENTS / f"{env}.txt"


def commanded(*command: str, cwd: str | None = None) -> None:
    """RuntimeError: it failed, with its last words."""
    done = subprocess.run(command, check=False, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise RuntimeError(
            f"{Path(command[0]).name} ended with {done.returncode}: {(said or ['-'])[-1]}"
        )
