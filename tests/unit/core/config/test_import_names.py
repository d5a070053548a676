"""A model's name that is no MODULE:CLASS is answered with the one that was probably meant."""

from __future__ import annotations

import pytest

from batchpool.core.config.flags import model_of
from batchpool.core.config.import_names import import_hint
from batchpool.core.config.toml_file import load_toml
from batchpool.core.errors import ConfigError

ELSEWHERE = "as the current directory or in BATCHPOOL_MODEL_PATH"
RENAMED = "; a module's name has no '-', so the file or folder must be named so"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("m.py:M", "; write m:M"),
        ("./m.py:M", "; write m:M"),
        ("models/scale.py:Scale", "; write models.scale:Scale"),
        ("models/scale:Scale", "; write models.scale:Scale"),
        ("models.scale.Scale", "; write models.scale:Scale"),
        ("my-model:M", f"; write my_model:M{RENAMED}"),
        ("a-b/my-model.py:M", f"; write a_b.my_model:M{RENAMED}"),
        (
            "/srv/m.py:M",
            f"; write m:M with /srv {ELSEWHERE}",
        ),
        ("../m.py:M", f"; write m:M with .. {ELSEWHERE}"),
        ("m.py", ""),
        ("m", ""),
        ("m:", ""),
        (":M", ""),
        ("", ""),
        ("m:M M", ""),
        ("1m.py:M", ""),
    ],
)
def test_the_spelling_that_works(text: str, hint: str) -> None:
    assert import_hint(text) == hint


def test_it_stands_in_the_message_of_a_flag_and_of_a_file() -> None:
    with pytest.raises(ConfigError) as flag:
        model_of("models/scale.py:Scale")
    with pytest.raises(ConfigError) as file:
        load_toml('[[model]]\nimport = "models/scale.py:Scale"', "pool.toml")
    for caught in (flag, file):
        text = str(caught.value)
        assert text.endswith('as "my_models:Scale"; write models.scale:Scale')
