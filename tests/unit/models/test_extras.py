"""A path that is no folder of a model, and weights that may not be loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchpool.models.extras import check_weights, folder_with


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("", r"no config\.json in the folder /.*, which option path names"),
        ("weights", r"weights is a file; option path takes the folder that has config\.json"),
        ("org/model", r"no folder /.*/org/model, .* nothing is fetched from a hub"),
    ],
)
def test_a_path_that_is_no_folder_of_a_model(tmp_path: Path, path: str, text: str) -> None:
    (tmp_path / "weights").touch()
    with pytest.raises(FileNotFoundError, match=text):
        folder_with(tmp_path / path, "config.json")


def test_weights_are_there_and_need_no_trust(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no weights .* model\.safetensors was expected"):
        check_weights(tmp_path, True)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin is pickled.* trust = true"):
        check_weights(tmp_path, False)
    check_weights(tmp_path, True)
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    check_weights(tmp_path, False)
