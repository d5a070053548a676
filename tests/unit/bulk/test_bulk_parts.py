"""Parts of a bulk run: what counts, whatever a kill or a disk has left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batchpool.bulk.parts import Parts
from batchpool.core.errors import StartError

MANIFEST: dict[str, Any] = {"model": "m", "chunk_rows": None}


def opened(restart: bool = False) -> Parts:
    parts = Parts("out")
    parts.open(MANIFEST, 8, restart=restart, goes_on=True)
    return parts


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two parts, the second one with a bad row."""
    monkeypatch.chdir(tmp_path)
    parts = opened()
    for bad in (b"", b"{}\n"):
        parts.commit(lambda file: file.write(b"rows"), bad, {"n": 1, "bad_rows": len(bad) // 3})
    parts.close()
    return tmp_path / "out.parts"


def counted() -> int:
    parts = opened()
    parts.close()
    return parts.done


def test_what_is_committed_counts(folder: Path) -> None:
    assert counted() == 2
    parts = opened()
    assert [record["bad_rows"] for record in parts.records()] == [0, 1]
    assert Path(parts.checked(1)).read_bytes() == b"rows"
    parts.close()
    parts = opened(restart=True)
    assert parts.done == 0
    parts.remove()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("part-00000001.rows", b"row"),
        ("part-00000001.rows", None),
        ("part-00000001.bad", b""),
        ("part-00000001.json", b'{"n": 1, "bad'),
        ("part-00000001.json", b"[]"),
        ("part-00000001.json", b"[" * 100_000),
        ("part-00000001.json", b'{"rows": {"size": 4, "crc32": 0}, "n": 1}'),
        ("part-00000001.json", b'{"rows": 4, "n": 1, "bad_rows": 0}'),
        ("part-00000001.json", b'{"rows": {"size": 4, "crc32": 0}, "n": "1", "bad_rows": 0}'),
        ("part-00000001.json", None),
    ],
)
def test_a_part_counts_as_a_whole_or_not_at_all(
    folder: Path, name: str, content: bytes | None
) -> None:
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    assert counted() == 1


def test_a_write_that_was_cut_off_leaves_no_part(folder: Path) -> None:
    (folder / "part-00000002.rows.tmp").write_bytes(b"ro")
    (folder / "part-00000002.rows").write_bytes(b"rows")  # renamed, and no record yet
    assert counted() == 2


@pytest.mark.parametrize(
    "content",
    ["{", "[1]", "7", "[" * 100_000, '{"chunk_rows": "8"}', '{"chunk_rows": 0}', '{"input": [1]}'],
)
def test_a_manifest_that_is_none_is_told(folder: Path, content: str) -> None:
    (folder / "manifest.json").write_text(content)
    with pytest.raises(StartError, match="not as a run wrote it; --restart drops the parts"):
        opened()


def test_a_manifest_without_its_chunks_is_told(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["chunk_rows"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(StartError, match="not as a run wrote it"):
        opened()


def test_parts_without_a_manifest_are_not_dropped_unasked(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    with pytest.raises(StartError, match="not as a run wrote it; --restart drops the parts"):
        opened()
