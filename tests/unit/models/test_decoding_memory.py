"""Pictures that are decoded at the same time take no more memory than they may."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

import batchpool as bp
from batchpool.models.decoding_memory import DecodingMemory

Image = pytest.importorskip("PIL.Image")

from batchpool.models.pictures import use_picture  # noqa: E402

ROOT = Path(__file__).parents[3]
GUARD_S = 60
SIDE = 2000  # pixels; 4 bytes each are 16 MiB
MIB = 1 << 20
SLACK = 6 * MIB  # rows of decoders, and what malloc rounds up
FORMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "JPEG": ("RGB", "JPEG", {}),
    "JPEG of several scans": ("RGB", "JPEG", {"progressive": True, "subsampling": 0}),
    "JPEG of several scans, grey": ("L", "JPEG", {"progressive": True}),
    "JPEG for print": ("CMYK", "JPEG", {}),
    "JPEG to be turned": ("RGB", "JPEG", {"exif": b"turned"}),
    "PNG": ("RGB", "PNG", {}),
    "PNG with alpha": ("RGBA", "PNG", {}),
    "PNG of grey in 16 bits": ("I;16", "PNG", {}),
    "PNG with alpha to be turned": ("RGBA", "PNG", {"exif": b"turned"}),
    "WebP": ("RGB", "WEBP", {"method": 0}),
    "WebP with alpha": ("RGBA", "WEBP", {"method": 0}),
    "WebP to be turned": ("RGB", "WEBP", {"method": 0, "exif": b"turned"}),
}
# The peak of a process that decodes one picture, above what it holds before.
MEASURED = """
import sys
from batchpool.models.decoding_memory import DecodingMemory
from batchpool.models.pictures import use_picture

def kib(key):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1])

class Memory(DecodingMemory):
    def holding(self, size):
        self.needed = size
        return super().holding(size)

def decode(path):
    memory = Memory(1)
    use_picture(open(path, "rb").read(), 10**8, memory, lambda picture: None)
    return memory.needed

decode(sys.argv[1])  # imports what Pillow needs
for path in sys.argv[2:]:
    open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew
    before = kib("VmRSS")
    needed = decode(path)
    print((kib("VmHWM") - before) * 1024, needed)
"""


def written(mode: str, form: str, side: int, **more: Any) -> bytes:
    if "exif" in more:
        exif = Image.Exif()
        exif[0x0112] = 6
        more = {**more, "exif": exif}
    plain = Image.linear_gradient("L").resize((side, side))
    picture = plain.convert("I;16") if mode == "I;16" else plain.convert(mode)
    file = io.BytesIO()
    picture.save(file, form, **more)
    return file.getvalue()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_what_a_picture_takes_is_known_from_its_head(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.write_bytes(written("RGB", "WEBP", 9))
    paths = []
    for name, (mode, form, more) in FORMS.items():
        paths.append(tmp_path / name)
        paths[-1].write_bytes(written(mode, form, SIDE, **more))
    script = [sys.executable, "-c", MEASURED, *map(str, (small, *paths))]
    # Large blocks go back at once, so that each picture is measured from the same start.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    ended = subprocess.run(
        script, cwd=ROOT, capture_output=True, text=True, timeout=GUARD_S, check=False, env=env
    )
    assert ended.returncode == 0, ended.stderr
    for name, line in zip(FORMS, ended.stdout.splitlines(), strict=True):
        peak, needed = map(int, line.split())
        assert needed / 3 <= peak <= needed + SLACK, (name, peak, needed)


def test_pictures_wait_until_there_is_room_and_small_ones_do_not() -> None:
    memory = DecodingMemory(100)
    gates = [threading.Event() for _ in range(3)]
    held = [threading.Event() for _ in range(3)]

    def hold(at: int, size: int) -> int:
        with memory.holding(size):
            held[at].set()
            assert gates[at].wait(GUARD_S)
            return memory.held_bytes

    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(hold, 0, 70)
        assert held[0].wait(GUARD_S)
        large = threads.submit(hold, 1, 60)
        small = threads.submit(hold, 2, 30)
        assert held[2].wait(GUARD_S)
        gates[2].set()
        assert small.result(GUARD_S) == 100
        assert not held[1].is_set()
        gates[1].set()
        gates[0].set()
        assert first.result(GUARD_S) <= 100
        assert large.result(GUARD_S) <= 100
    assert memory.held_bytes == 0


def test_a_picture_above_the_bound_is_decoded_alone() -> None:
    memory = DecodingMemory(1)
    most = 0
    lock = threading.Lock()
    raw = written("RGB", "PNG", 20)

    def size_of(picture: Any) -> tuple[int, int]:
        nonlocal most
        with lock:
            most = max(most, memory.held_bytes)
        size: tuple[int, int] = picture.size
        return size

    def decode() -> tuple[int, int]:
        return use_picture(raw, 400, memory, size_of)

    with ThreadPoolExecutor(8) as threads:
        done = [threads.submit(decode) for _ in range(40)]
        wait(done, GUARD_S)
    assert [each.result(0) for each in done] == [(20, 20)] * 40
    assert most == 8 * 400  # of one PNG, which may be turned
    assert memory.held_bytes == 0


def test_a_picture_is_gone_when_its_memory_is_given_back() -> None:
    class Memory(DecodingMemory):
        def give_back(self, size: int) -> None:
            assert picture() is None
            super().give_back(size)

    picture: Any = None

    def use(found: Any) -> str:
        nonlocal picture
        picture = weakref.ref(found)
        assert picture() is found
        return "used"

    for mode, form in (("RGB", "JPEG"), ("RGBA", "PNG"), ("RGB", "WEBP")):
        raw = written(mode, form, 20)
        assert use_picture(raw, 400, Memory(1), use) == "used"


# The most that a process of eight threads grows by over twenty pictures.
OF_THREADS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from batchpool.models.decoding_memory import DecodingMemory
from batchpool.models.pictures import use_picture

def kib(key):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1])

memory = DecodingMemory(int(sys.argv[2]))
raw = open(sys.argv[1], "rb").read()
with ThreadPoolExecutor(8) as threads:
    def small(picture):
        return picture.resize((8, 8))
    threads.submit(use_picture, raw, 10**8, memory, small).result()
    open("/proc/self/clear_refs", "w").write("5")
    before = kib("VmRSS")
    done = [threads.submit(use_picture, raw, 10**8, memory, small) for _ in range(20)]
    assert all(each.result().size == (8, 8) for each in done)
    print((kib("VmHWM") - before) * 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
@pytest.mark.parametrize("form", ["JPEG", "WEBP"])
def test_threads_keep_no_memory_of_pictures_that_are_done(tmp_path: Path, form: str) -> None:
    """Freed memory must go back to the system, or each thread comes to hold a picture."""
    path = tmp_path / "picture"
    path.write_bytes(written("RGB", form, 3200))  # 39 MiB of pixels
    most = 200 * MIB
    script = [sys.executable, "-c", OF_THREADS, str(path), str(most)]
    ended = subprocess.run(
        script, cwd=ROOT, capture_output=True, text=True, timeout=GUARD_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) <= most + 8 * SLACK


def test_what_cannot_be_decoded_holds_nothing_afterwards() -> None:
    memory = DecodingMemory(1 << 20)
    raw = written("RGB", "JPEG", 200)

    def fail(picture: Any) -> None:
        raise ZeroDivisionError

    for wrong, most in ((b"no picture", 400), (raw, 400), (raw[: len(raw) // 2], 40_000)):
        with pytest.raises(bp.InvalidInput):
            use_picture(wrong, most, memory, fail)
        assert memory.held_bytes == 0
    with pytest.raises(ZeroDivisionError):
        use_picture(raw, 40_000, memory, fail)
    assert memory.held_bytes == 0
