"""Top-k and top-p let in the tokens that transformers lets in; the noise of a seed is even."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lazy import library

torch = library("torch")
sampling = library("batchpool.models.decoder.sampling")
processors = library("transformers.generation.logits_process")

VOCABULARY = 500


def logits(rows: int) -> Any:
    generator = torch.Generator().manual_seed(5)
    return torch.randn((rows, VOCABULARY), generator=generator) * 3


def expected(row: Any, temperature: float, top_k: int, top_p: float) -> Any:
    """The scores [1, vocabulary] of the library's own processors, in its order."""
    chain: list[Any] = [processors.TemperatureLogitsWarper(temperature)]
    if top_k:
        chain.append(processors.TopKLogitsWarper(top_k))
    if top_p < 1:
        chain.append(processors.TopPLogitsWarper(top_p))
    scores = row[None]
    for processor in chain:
        scores = processor(None, scores)
    return scores


CHOICES = [
    (temperature, top_k, top_p)
    for temperature in (0.3, 1.0, 1.7)
    for top_k in (0, 1, 7, VOCABULARY, 10**6)
    for top_p in (1e-6, 0.1, 0.9, 0.999, 1.0)
]


def test_those_are_let_in_that_the_library_lets_in() -> None:
    rows = logits(len(CHOICES))
    samplings = [sampling.Sampling(*choice, seed=0) for choice in CHOICES]
    found = sampling.allowed(rows, samplings)
    for at, choice in enumerate(CHOICES):
        wanted = expected(rows[at], *choice)
        torch.testing.assert_close(found[at], wanted[0], msg=str(choice))
        alone = sampling.allowed(rows[at : at + 1], samplings[at : at + 1])
        torch.testing.assert_close(alone, wanted, msg=str(choice))


def test_tokens_that_are_as_likely_as_the_last_one_are_let_in() -> None:
    row = torch.tensor([[1.0, 5.0, 3.0, 3.0, 3.0]])
    found = sampling.allowed(row, [sampling.Sampling(1.0, 2, 1.0, 0)])
    assert found.isfinite().tolist() == [[False, True, True, True, True]]


def test_a_token_depends_on_seed_and_position_alone() -> None:
    rows = logits(4)
    one = sampling.Sampling(1.0, 0, 0.9, 42)
    other = sampling.Sampling(1.0, 5, 1.0, 43)
    together = sampling.sampled(rows, [other, one, one, other], [9, 9, 10, 2])
    assert together[1] == sampling.sampled(rows[1:2], [one], [9])[0]
    same = torch.cat([rows[:1]] * 64)
    by_position = sampling.sampled(same, [one] * 64, list(range(64)))
    by_seed = sampling.sampled(
        same, [sampling.Sampling(1.0, 0, 1.0, seed) for seed in range(64)], [9] * 64
    )
    assert min(len(set(by_position.tolist())), len(set(by_seed.tolist()))) > 8


def test_a_choice_among_the_likeliest_is_that_among_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where more tokens are let in than are looked at, and where some are as likely as the
    last one."""
    rows = logits(len(CHOICES)).bfloat16()  # so few digits that many are equal
    samplings = [sampling.Sampling(*choice, seed=at) for at, choice in enumerate(CHOICES)]
    positions = list(range(len(CHOICES)))
    monkeypatch.setattr(sampling, "_FEW_CANDIDATES", VOCABULARY)
    wanted = sampling.sampled(rows, samplings, positions)  # the vocabulary is small
    monkeypatch.setattr(sampling, "_FEW_CANDIDATES", 0)
    certain: list[bool] = []
    among = sampling._among_candidates

    def counted(*given: Any) -> Any:
        found = among(*given)
        certain.extend(found[1].tolist())
        return found

    monkeypatch.setattr(sampling, "_among_candidates", counted)
    for candidates in (8, 40, 200):
        monkeypatch.setattr(sampling, "_CANDIDATES", candidates)
        assert sampling.sampled(rows, samplings, positions).tolist() == wanted.tolist()
    assert 20 < sum(certain) < len(certain) - 20


def test_a_choice_of_few_is_that_among_all_unless_very_many_are_equal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of tokens as likely as the last one that is let in, those count that are looked at."""
    some = [(temperature, k, p) for temperature in (0.5, 2.0) for k in (1, 7, 64) for p in (0.3, 1)]
    rows = logits(len(some) + 1).bfloat16()
    samplings = [sampling.Sampling(*choice, seed=at) for at, choice in enumerate(some)]
    samplings.append(sampling.Sampling(1.0, 0, 1.0, 3))  # among all, in the same call
    positions = list(range(len(rows)))
    found = sampling.sampled(rows, samplings, positions)
    monkeypatch.setattr(sampling, "_FEW_CANDIDATES", VOCABULARY)
    assert found.tolist() == sampling.sampled(rows, samplings, positions).tolist()
    monkeypatch.undo()
    equal = torch.ones((1, VOCABULARY))
    same = [sampling.Sampling(1.0, 3, 1.0, 0)] * VOCABULARY
    drawn = sampling.sampled(equal.expand(VOCABULARY, -1), same, range(VOCABULARY))
    assert 64 < len(set(drawn.tolist())) <= sampling._FEW_CANDIDATES


def test_rows_that_are_chosen_among_all_after_all_keep_their_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampling, "_CANDIDATES", 8)
    rows = logits(2)
    uncertain, unbounded = sampling.Sampling(2.0, 0, 0.99, 1), sampling.Sampling(1.0, 0, 1.0, 2)
    found = sampling.sampled(rows, [uncertain, unbounded], [5, 6])
    assert found[0] == sampling.sampled(rows[:1], [uncertain], [5])[0]
    assert found[1] == sampling.sampled(rows[1:], [unbounded], [6])[0]


def test_tokens_come_as_often_as_they_are_likely() -> None:
    likely = torch.tensor([0.5, 0.3, 0.15, 0.05])
    n = 4000
    one = sampling.Sampling(1.0, 0, 1.0, 7)
    found = sampling.sampled(likely.log().expand(n, 4), [one] * n, list(range(n)))
    share = torch.bincount(found, minlength=4) / n
    torch.testing.assert_close(share, likely, atol=0.03, rtol=0)


def test_the_noise_is_that_of_gumbel() -> None:
    noise = sampling.gumbel([1, -(2**63), 2**63 - 1], 20_000, torch.device("cpu"))
    assert noise.isfinite().all()
    for row in noise:  # mean: Euler's constant; variance: pi squared / 6
        assert float(row.mean()) == pytest.approx(0.5772, abs=0.04)
        assert float(row.var()) == pytest.approx(1.645, abs=0.08)
    assert abs(float(torch.corrcoef(noise)[0, 1])) < 0.03


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, 2**64 - 1])
def test_a_key_is_a_signed_number_of_64_bits(seed: int) -> None:
    keys = {sampling.Sampling(1.0, 0, 1.0, seed).key(at) for at in range(100)}
    assert len(keys) == 100
    assert all(-(2**63) <= key < 2**63 for key in keys)
