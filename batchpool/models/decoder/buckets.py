"""The shapes of calls of the model: few, so that each can be a CUDA graph, and close to what is
needed, so that little is computed for nothing."""

from __future__ import annotations

from collections.abc import Sequence

Chunk = tuple[int, int]  # rows, tokens of each

_SHORTEST_LENGTH = 256
_STEP = 4  # between the numbers of rows
_CHUNK_ROWS = (1, 4, 16)
_LEAST_CHUNK_TOKENS = 16
_LEAST_PROMPT_TOKENS = 32


def lengths(longest: int) -> tuple[int, ...]:
    """The numbers of tokens that a call looks back at most: powers of two, then the longest."""
    found = []
    length = _SHORTEST_LENGTH
    while length < longest:
        found.append(length)
        length *= 2
    return (*found, longest)


def decode_rows(slots: int) -> tuple[int, ...]:
    """The numbers of slots that are decoded together: powers of four, then all slots."""
    found = []
    rows = 1
    while rows < slots:
        found.append(rows)
        rows *= _STEP
    return (*found, slots)


def chunks(budget: int, slots: int) -> tuple[Chunk, ...]:
    """The chunks of prompts that are prefilled together, of at most `budget` tokens with padding.

    budget: 1 or more. slots: the most rows.
    """
    found: list[Chunk] = []
    for rows in sorted({min(rows, slots, budget) for rows in _CHUNK_ROWS}):
        tokens = budget // rows
        found.append((rows, tokens))
        while (tokens := tokens // _STEP) >= _LEAST_CHUNK_TOKENS:
            found.append((rows, tokens))
    return tuple(found)


def prompt_tokens(budget: int) -> tuple[int, ...]:
    """The numbers of tokens of prompts that a call takes which has no padding between them: powers
    of two, then the budget, 1 or more."""
    found = []
    tokens = _LEAST_PROMPT_TOKENS
    while tokens < budget:
        found.append(tokens)
        tokens *= 2
    return (*found, budget)


def smallest(sizes: Sequence[int], needed: int) -> int:
    """The smallest of ascending sizes that is enough. needed: at most the largest."""
    return next(size for size in sizes if size >= needed)


def best_chunk(shapes: Sequence[Chunk], rests: Sequence[int]) -> Chunk:
    """The chunk that takes the most tokens of the sequences that wait to be prefilled; of several,
    the one with the least padding, then that with the fewest rows.

    rests: the tokens that each has left, those that joined first before others; a chunk of n rows
    takes the first n.
    """
    return min(shapes, key=lambda shape: (-taken(shape, rests), shape[0] * shape[1], shape[0]))


def taken(shape: Chunk, rests: Sequence[int]) -> int:
    """The tokens that a chunk takes, without padding."""
    rows, tokens = shape
    return sum(min(rest, tokens) for rest in rests[:rows])


def is_dense(slots: Sequence[int]) -> bool:
    """True where the first slots up to the highest of these are at most twice as many: then all of
    them are decoded in place, and else these alone, whose keys and values are copied."""
    return max(slots) < 2 * len(slots)
