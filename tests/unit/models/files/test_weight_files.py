"""Files of safetensors that are not whole are told by their head, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from batchpool.models.files.weight_files import check_safetensors
from tests.lazy import library

safetensors = library("safetensors.numpy")


def test_a_whole_file_of_the_library_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {"a": np.ones((3, 4), np.float32), "b": np.zeros(0, np.int64)}
    safetensors.save_file(tensors, path, metadata={"format": "pt"})
    check_safetensors(path)
    safetensors.save_file({}, path)
    check_safetensors(path)


def test_a_file_that_was_cut_tells_both_sizes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.save_file({"a": np.ones((3, 4), np.float32)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(
        ValueError, match=rf"has {len(whole) - 1} bytes, and {len(whole)} by its head"
    ):
        check_safetensors(path)
    for size in (0, 5, 8, 40):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=rf"{path}, of {size} bytes, is no whole file"):
            check_safetensors(path)


@pytest.mark.parametrize("head", [b"[]", b"7", b'{"a": 7}', b'{"a": {"data_offsets": [0]}}', b"{"])
def test_another_file_is_none(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(head).to_bytes(8, "little") + head)
    with pytest.raises(ValueError, match="is no whole file of safetensors"):
        check_safetensors(path)


def test_a_head_of_absurd_length_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\xff" * 8 + b"{}")
    with pytest.raises(ValueError, match="is no whole file of safetensors"):
        check_safetensors(path)


def test_a_pointer_of_git_lfs_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n")
    with pytest.raises(ValueError, match=r"pointer of Git LFS .* run `git lfs pull`"):
        check_safetensors(path)
