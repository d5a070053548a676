"""Models that cannot be run in slots are refused by name and reason, when they are loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lazy import library
from tests.unit.models.decoder_folders import VOCABULARY, Loop, llama, loaded, sequence

transformers = library("transformers")
torch = library("torch")
slot_check = library("batchpool.models.decoder.slot_check")

SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "pad_token_id": 0}


def test_attention_that_follows_no_mask_is_refused(tmp_path: Path) -> None:
    """Bloom computes the distances of ALiBi from a mask of its own."""
    config = transformers.BloomConfig(**SMALL, n_layer=2, n_head=4)
    transformers.BloomForCausalLM(config).save_pretrained(str(tmp_path))
    with pytest.raises(ValueError, match=r"^BloomForCausalLM cannot be served as a generator: "):
        loaded(tmp_path, 2)


def test_attention_of_the_models_own_code_adds_the_mask(tmp_path: Path) -> None:
    config = transformers.Gemma2Config(
        **SMALL, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=48, initializer_range=0.2, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    transformers.Gemma2ForCausalLM(config).save_pretrained(str(tmp_path))
    prompts = [[1], [5, 6, 7], list(range(1, 40))]
    wanted = [sequence(0, prompt, 8) for prompt in prompts]
    found = Loop(loaded(tmp_path, 2, chunk_tokens=16), wanted).run()
    model = transformers.AutoModelForCausalLM.from_pretrained(str(tmp_path))
    for prompt, tokens in zip(prompts, found.values(), strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *tokens]])).logits[0]
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == tokens


def test_what_is_no_decoder_is_refused(tmp_path: Path) -> None:
    config = transformers.ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    transformers.ViTModel(config).save_pretrained(str(tmp_path))
    with pytest.raises(ValueError, match=r"cannot be served: Unrecognized configuration class"):
        loaded(tmp_path, 2)


def test_a_model_without_keys_and_values_is_refused() -> None:
    config = transformers.MambaConfig(**SMALL, num_hidden_layers=2, state_size=4)
    model = transformers.MambaForCausalLM(config)
    reason = r"^MambaForCausalLM cannot be served as a generator: its layer 0 keeps no keys and"
    with pytest.raises(slot_check.UnfitModelError, match=reason):
        slot_check.reference(model, torch.device("cpu"))


def test_logits_that_differ_are_told_with_the_difference(tmp_path: Path) -> None:
    model = transformers.LlamaForCausalLM.from_pretrained(str(llama(tmp_path)))
    cpu = torch.device("cpu")
    with torch.inference_mode():
        layers, expected = slot_check.reference(model, cpu)
        cache = slot_check.SlotCache(layers, 2, slot_check.TRIED_TOKENS, model.dtype, cpu)
        slot_check.check(model, cache, expected)
        wrong = expected.clone()
        wrong[-1, 5] += float(expected.abs().max()) / 100
        with pytest.raises(slot_check.UnfitModelError, match=r"logits differ by .* by more than"):
            slot_check.check(model, cache, wrong)
        wrong[-1, 5] = torch.nan
        with pytest.raises(slot_check.UnfitModelError, match="logits differ by nan"):
            slot_check.check(model, cache, wrong)
