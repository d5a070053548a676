"""Texts as people embed them: short passages of many lengths.

Words a text: log-normal, 4 to 120, median 20, mean 25; about 28 tokens of a BERT tokenizer.
"""

from __future__ import annotations

import random

_SEED = 1234
_WORDS = (
    "river winter market engine teacher bridge silver question morning signal garden paper method"
    " window doctor island energy colour report travel memory street listen simple yellow between"
    " become remember kitchen problem several science picture mountain children language"
    " always without the of and to in is that for on with as by at from it was are this which or"
)
SHORTEST, LONGEST = 4, 120  # words
_MEDIAN_LOG, _SPREAD = 3.0, 0.8


def make_texts(n: int, seed: int = _SEED) -> list[str]:
    """So many different texts, the same for each seed."""
    draw, known = random.Random(seed), _WORDS.split()
    texts: dict[str, None] = {}
    while len(texts) < n:
        words = int(min(LONGEST, max(SHORTEST, draw.lognormvariate(_MEDIAN_LOG, _SPREAD))))
        texts[" ".join(draw.choices(known, k=words))] = None
    return list(texts)
