"""Models that cannot be run in slots are refused by name and reason, when they are loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lazy import library
from tests.unit.models.decoder_folders import VOCABULARY, llama, loaded

transformers = library("transformers")
torch = library("torch")
slot_check = library("batchpool.models.decoder.slot_check")

SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "pad_token_id": 0}


def test_attention_without_a_mask_of_truths_is_refused(tmp_path: Path) -> None:
    config = transformers.BloomConfig(**SMALL, n_layer=2, n_head=4)
    transformers.BloomForCausalLM(config).save_pretrained(str(tmp_path))
    with pytest.raises(ValueError, match=r"cannot be served: BloomForCausalLM does not support"):
        loaded(tmp_path, 2)


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
