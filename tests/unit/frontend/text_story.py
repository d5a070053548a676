"""A generator whose tokens are text: it goes on with the letters behind the first of its prompt.

Its tokens are those of a byte-level tokenizer, in which letters follow one another.
"""

from __future__ import annotations

from pathlib import Path

import batchpool as bp
from batchpool.core.tensors.text import Text
from tests.unit.frontend.story_double import Story
from tests.unit.text.tokenizers_made import byte_level, saved

LAST = "{{ messages[-1]['content'] }}"


def tale(
    folder: Path, template: str = LAST, *, tokenizer: Path | None = None
) -> type[bp.Generator]:
    """The class of a generator "tale". tokenizer: of another path than that of a new one."""

    class Tale(Story):
        prompt = bp.Tensor("prompt", "int32", (bp.Dim(64),))
        text = Text(str(tokenizer or saved(byte_level(), folder)), template)

    return Tale
