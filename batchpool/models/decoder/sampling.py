"""The next token of each sequence: the temperature, top-k and top-p of a request, and the noise of
its seed, computed on the device.

Temperature, then top-k, then top-p, as transformers orders them. The choice is made by the Gumbel
trick: the largest of log probability + Gumbel noise is a sample of the distribution. The noise of a
token is a hash of seed, position and token alone. So a seed gives the same tokens whatever other
sequences run beside, and after a worker was lost, where the logits are the same; and a difference
in their last digits seldom changes the largest sum.

Where top-k or top-p bound the choice, it is made among the likeliest tokens, which are some
hundreds of a hundred thousand; whether all that are let in are among them is checked for each row,
and where that is not certain the choice is among all tokens. For that the CPU waits for the device.
It does not where top-k lets in few: then only tokens as likely as the last one may be more than are
looked at, and of these the last are left out. A model whose next call needs nothing of the CPU goes
on without a pause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from batchpool.models.decoder.slot_state import staged

_MASK = 2**64 - 1
# The steps of splitmix64 (Steele, Lea, Flood, 2014), and of a multiplicative hash.
_GAMMA, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_ROWS_AT_ONCE = 32  # bounds the memory, some tens of bytes for each token of the vocabulary
_CANDIDATES = 1024  # the likeliest tokens, among which a bounded choice is made
_FEW_CANDIDATES = 128  # enough where all that choose want as few as usual, by top-k
_FEW_ROWS_AT_ONCE = 256
_LARGEST = 1 - 2**-24  # the float32 below 1


@dataclass(frozen=True)
class Sampling:
    """The choice of a sequence's tokens. temperature: above 0. top_k: 0 for any number of tokens.
    top_p: above 0, at most 1. seed: 64 bits."""

    temperature: float
    top_k: int
    top_p: float
    seed: int

    @property
    def is_bounded(self) -> bool:
        return bool(self.top_k) or self.top_p < 1

    def key(self, position: int) -> int:
        """The key of the noise at a position, as a signed number of 64 bits."""
        return _signed(_mixed(_mixed(self.seed & _MASK) + position * _GAMMA))


def _mixed(word: int) -> int:
    word = (word + _GAMMA) & _MASK
    word = ((word ^ (word >> 30)) * _MIX_1) & _MASK
    word = ((word ^ (word >> 27)) * _MIX_2) & _MASK
    return word ^ (word >> 31)


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def sampled(
    logits: torch.Tensor, samplings: Sequence[Sampling], positions: Sequence[int]
) -> torch.Tensor:
    """A token for each row, [n] int64. logits: [n, vocabulary]. positions: of the tokens in their
    sequences, prompt and all."""
    keys = [each.key(at) for each, at in zip(samplings, positions, strict=True)]
    chosen = torch.zeros(len(keys), dtype=torch.int64, device=logits.device)
    few, more, left = [], [], []
    for row, each in enumerate(samplings):
        if logits.shape[1] > _FEW_CANDIDATES and 0 < each.top_k <= _FEW_CANDIDATES // 2:
            few.append(row)
        elif logits.shape[1] > _CANDIDATES and each.is_bounded:
            more.append(row)
        else:
            left.append(row)

    def choose(rows: list[int], candidates: int) -> torch.Tensor:
        """For each row whether its choice is certain."""
        given = [samplings[row] for row in rows], [keys[row] for row in rows]
        found, certain = _among_candidates(_rows_of(logits, rows), *given, candidates)
        chosen.index_copy_(0, staged(rows, logits.device), found)
        return certain

    for rows in _blocks(few, _FEW_ROWS_AT_ONCE):
        choose(rows, _FEW_CANDIDATES)
    for rows in _blocks(more):
        certain = choose(rows, _CANDIDATES).tolist()
        left += [row for row, sure in zip(rows, certain, strict=True) if not sure]
    for rows in _blocks(sorted(left)):
        scores = allowed(_rows_of(logits, rows), [samplings[row] for row in rows])
        noise = gumbel([keys[row] for row in rows], logits.shape[1], logits.device)
        at = staged(rows, logits.device)
        chosen.index_copy_(0, at, torch.argmax(scores + noise, dim=-1))
    return chosen


def _rows_of(logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
    if len(rows) == len(logits):
        return logits  # all of them: their numbers rise
    return logits[staged(rows, logits.device)]


def _blocks(rows: list[int], most: int = _ROWS_AT_ONCE) -> Iterator[list[int]]:
    for first in range(0, len(rows), most):
        yield rows[first : first + most]


def _among_candidates(
    logits: torch.Tensor, samplings: Sequence[Sampling], keys: Sequence[int], candidates: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token for each row of so many of the likeliest, [n] int64, and whether all tokens that are
    let in are among them, [n] bool: then a choice among all would have made the same token."""
    device, some = logits.device, float("inf")
    rows = [
        (each.temperature, each.top_p if each.top_p < 1 else some, float(each.top_k))
        for each in samplings
    ]
    temperature, top_p, top_k = staged(rows, device, torch.float32).T[:, :, None]
    best = logits.topk(candidates)  # sorted, the largest first
    scores = torch.div(best.values.float(), temperature)
    ranks = top_k.long().clamp(1, candidates) - 1
    last = torch.where(top_k > 0, scores.gather(1, ranks), -torch.inf)
    kept = scores.masked_fill(scores < last, -torch.inf)
    total = kept.logsumexp(-1, keepdim=True)
    if any(not each.top_k for each in samplings):
        of_all = torch.div(logits.float(), temperature).logsumexp(-1, keepdim=True)
        total = torch.where(top_k > 0, total, of_all)
    share = (kept - total).exp()
    before = share.cumsum(-1) - share  # of the tokens that are likelier
    within = (before < top_p) & (kept > -torch.inf)
    within[:, 0] = True
    least = kept.masked_fill(~within, torch.inf).amin(-1, keepdim=True)
    let_in = scores >= least
    # The last candidate is out: so are all tokens behind it.
    certain = ~let_in[:, -1] & (top_k[:, 0] < candidates)
    noise = _gumbel_of(best.indices, keys)
    at = torch.argmax(scores.masked_fill(~let_in, -torch.inf) + noise, dim=-1, keepdim=True)
    return best.indices.gather(1, at)[:, 0], certain


def allowed(logits: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """The logits [n, vocabulary] float32 by temperature, -inf for tokens that top-k and top-p leave
    out. Tokens that are as likely as the last one let in are let in too."""
    device, vocabulary = logits.device, logits.shape[1]
    # A top_p of 1 is no bound: the sum of the others may be rounded to 1.
    rows = [(each.temperature, each.top_p if each.top_p < 1 else 2.0) for each in samplings]
    temperature, top_p = staged(rows, device, torch.float32).T[:, :, None]
    scores = torch.div(logits.float(), temperature)
    ranks = [min(each.top_k or vocabulary, vocabulary) for each in samplings]
    if min(ranks) == vocabulary and all(each.top_p == 1 for each in samplings):
        return scores
    best = scores.topk(max(ranks)).values  # sorted, the largest first
    last = staged(ranks, device)[:, None] - 1
    best = best.masked_fill(best < best.gather(1, last), -torch.inf)
    share = best.softmax(-1)
    before = share.cumsum(-1) - share  # of the tokens that are likelier
    # The first of them is let in whatever top_p is: nothing is likelier.
    within = (before < top_p) & (best > -torch.inf)
    within[:, 0] = True
    least = best.masked_fill(~within, torch.inf).amin(-1, keepdim=True)
    return scores.masked_fill(scores < least, -torch.inf)


def gumbel(keys: Sequence[int], vocabulary: int, device: torch.device) -> torch.Tensor:
    """Gumbel noise [n, vocabulary] float32 of the keys."""
    return _gumbel_of(torch.arange(vocabulary, dtype=torch.int64, device=device), keys)


def _gumbel_of(tokens: torch.Tensor, keys: Sequence[int]) -> torch.Tensor:
    """Gumbel noise float32 of tokens, [m] or [n, m] int64, for each of n keys, [n, m]."""
    row = staged(keys, tokens.device)[:, None]
    word = (tokens + 1) * _signed(_GAMMA) + row
    # The masks drop the copies of the sign that a shift of signed words brings in.
    word = (word ^ ((word >> 30) & (2**34 - 1))) * _signed(_MIX_1)
    word = (word ^ ((word >> 27) & (2**37 - 1))) * _signed(_MIX_2)
    upper = (word >> 32) & (2**32 - 1)
    uniform = ((upper.float() + 0.5) * 2**-32).clamp(max=_LARGEST)
    return -(-torch.log1p(-uniform)).log()
