"""A folder that lacks weights is refused: the library would make them up."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchpool.models.pretrained import keep_weights, whole_model
from tests.lazy import library
from tests.unit.models.files.written_over import write_over
from tests.unit.models.text_folders import classifier

transformers = library("transformers")


def test_a_folder_with_all_weights_is_loaded(tmp_path: Path) -> None:
    folder = classifier(tmp_path)
    found = whole_model(transformers.AutoModelForSequenceClassification, folder, trust=False)
    assert type(found).__name__ == "BertForSequenceClassification"


def test_a_network_without_its_head_is_refused_by_the_names_of_what_is_missing(
    tmp_path: Path,
) -> None:
    folder = classifier(tmp_path / "whole")
    whole = whole_model(transformers.AutoModelForSequenceClassification, folder, trust=False)
    bare = tmp_path / "bare"
    whole.bert.save_pretrained(bare)
    with pytest.raises(ValueError, match=r"has no weights for classifier\.bias, classifier\.weigh"):
        whole_model(transformers.AutoModelForSequenceClassification, bare, trust=False)
    with pytest.raises(ValueError, match=r"cls\.predictions\.bias, .* and \d more of BertLMHead"):
        whole_model(transformers.AutoModelForCausalLM, bare, trust=False)


def test_weights_in_memory_of_their_own_do_not_change_with_their_file(tmp_path: Path) -> None:
    folder = classifier(tmp_path)
    found = whole_model(transformers.AutoModelForSequenceClassification, folder, trust=False)
    keep_weights(found)
    before = {name: tensor.clone() for name, tensor in found.state_dict().items()}
    write_over(folder / "model.safetensors")
    for name, tensor in found.state_dict().items():
        assert tensor.equal(before[name]), name
