"""A folder of a sequence classifier gives the scores of the pipeline of transformers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchpool.model import Batch, make_instance, spec_of
from batchpool.models.text_classifier import TextClassifier
from batchpool.models.tokens import MADE, token_inputs
from tests.lazy import library
from tests.unit.models.files.written_over import write_over
from tests.unit.models.staged import Pair
from tests.unit.models.text_folders import TEXTS, classifier, rewrite

transformers = library("transformers")
torch = library("torch")


def made(folder: Path, **options: Any) -> TextClassifier:
    model = make_instance(TextClassifier, "m", {"path": folder, **options})
    assert isinstance(model, TextClassifier)
    return model


def infer(model: Pair, texts: list[Any]) -> dict[str, Any]:
    raw = [text if isinstance(text, bytes) else text.encode() for text in texts]
    return model.run(Batch(len(raw), {"text": np.array(raw, object)}))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"problem_type": "multi_label_classification"},
        {"problem_type": "regression", "labels": ("LABEL_0",)},
        {"labels": ("LABEL_0",)},
    ],
)
def test_scores_are_those_of_the_pipeline_alone_and_in_company(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    folder = classifier(tmp_path, **settings)
    model = Pair(lambda: made(folder))
    pipeline = transformers.pipeline("text-classification", model=str(folder), device="cpu")
    rows = pipeline(TEXTS, top_k=None, truncation=True, max_length=32)
    expected = [{each["label"]: each["score"] for each in row} for row in rows]
    together = infer(model, TEXTS)
    alone = [infer(model, [text]) for text in TEXTS]
    labels = model.spec.outputs[2].labels
    for row, scores in enumerate(expected):
        wanted = [scores[label] for label in labels]
        for found, at in ((together, row), (alone[row], 0)):
            np.testing.assert_allclose(found["scores"][at], wanted, atol=1e-5)
            assert found["label"][at].decode() == max(scores, key=lambda key: scores[key])
            assert found["score"][at] == found["scores"][at].max()


def test_scores_do_not_change_with_a_file_that_is_written_over(tmp_path: Path) -> None:
    folder = classifier(tmp_path)
    model = Pair(lambda: made(folder))
    before = infer(model, TEXTS)["scores"]
    write_over(folder / "model.safetensors")
    np.testing.assert_array_equal(infer(model, TEXTS)["scores"], before)


def test_a_text_that_is_not_utf8_fails_alone(tmp_path: Path) -> None:
    folder = classifier(tmp_path)
    model = Pair(lambda: made(folder))
    found = infer(model, ["good", b"a\xff", "bad"])
    assert list(model.refused) == [1]
    assert model.refused[1].details == {"offset": 1}
    np.testing.assert_allclose(found["scores"][2], infer(model, ["bad"])["scores"][0], atol=1e-6)


LONG = "a cat sleeps " * 40


def tokens_of(folder: Path, text: str) -> int:
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    return len(tokenizer(text, verbose=False)["input_ids"])


def filling(folder: Path, tokens: int) -> str:
    """A text of so many tokens, the tokenizer's marks among them."""
    text = "cat " * (tokens - 2)
    assert tokens_of(folder, text) == tokens
    return text


def test_the_answer_tells_which_texts_were_cut(tmp_path: Path) -> None:
    folder = classifier(tmp_path)
    model = Pair(lambda: made(folder))
    texts = ["good", LONG, filling(folder, 32), filling(folder, 33), ""]
    assert infer(model, texts)["truncated"].tolist() == [False, True, False, True, False]
    shorter = Pair(lambda: made(folder, max_tokens=4))
    found = infer(shorter, ["good", "good dog", "good dog runs"])
    assert found["truncated"].tolist() == [False, False, True]


def test_texts_may_be_refused_instead_each_for_its_row_alone(tmp_path: Path) -> None:
    folder = classifier(tmp_path)
    model = Pair(lambda: made(folder, truncate=False))
    assert "truncated" not in [tensor.name for tensor in model.spec.outputs]
    whole = tokens_of(folder, LONG)
    assert whole > 100
    found = infer(model, ["good", LONG, b"\xff" + LONG.encode(), filling(folder, 32)])
    assert sorted(model.refused) == [1, 2]
    assert str(model.refused[1]) == (
        f"text has {whole} tokens; at most 32 are taken: send it in parts, or let the model cut it"
        " with the option truncate = true"
    )
    assert model.refused[1].details == {"tokens": whole, "max_tokens": 32}
    assert str(model.refused[2]).startswith("text is not valid UTF-8")
    np.testing.assert_allclose(found["scores"][0], infer(model, ["good"])["scores"][0], atol=1e-6)


def test_tokens_are_padded_on_the_tokenizers_side(tmp_path: Path) -> None:
    """As some decoders need it; the library's own tensors of the same texts are the measure."""
    folder = classifier(tmp_path)
    rewrite(folder / "tokenizer_config.json", padding_side="left")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    expected = tokenizer(["good", "the dogs running fast"], padding=True, return_tensors="pt")
    ids = [tokenizer(text)["input_ids"] for text in ("good", "the dogs running fast")]
    sizes = np.array([[len(row)] for row in ids])
    padded = torch.zeros((2, int(sizes.max())), dtype=torch.int32)
    for row, own in zip(padded, ids, strict=True):
        row[: len(own)] = torch.tensor(own)
    batch = Batch(2, {"ids": padded, "types": padded * 0}, {"ids": sizes})
    found = token_inputs(batch, tokenizer, MADE)
    assert expected["input_ids"][0, 0] == tokenizer.pad_token_id
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_the_folder_tells_the_tensors(tmp_path: Path) -> None:
    folder = classifier(tmp_path, labels=("NO", "YÉS"))
    spec = spec_of(made(folder))
    label, score, scores, _ = spec.outputs
    assert (label.max_bytes, score.shape, scores.shape) == (4, (), (2,))
    assert scores.labels == ("NO", "YÉS")
    rewrite(folder / "config.json", id2label={"0": "same", "1": "same"})
    assert spec_of(made(folder)).outputs[2].labels == ()
    rewrite(folder / "config.json", id2label=None)
    assert spec_of(made(folder)).outputs[2].labels == ("LABEL_0", "LABEL_1")


def test_no_pickled_weights_are_loaded_without_trust(tmp_path: Path) -> None:
    folder = classifier(tmp_path)
    weights = transformers.BertForSequenceClassification.from_pretrained(str(folder)).state_dict()
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(OSError, match="safetensors"):
        made(folder).load("cpu")
    made(folder, trust=True).load("cpu")


@pytest.mark.parametrize("name", ["text_classifier", "sentence_transformer", "image_classifier"])
def test_a_ready_model_is_described_without_its_heavy_libraries(name: str) -> None:
    code = (
        f"import batchpool.models.{name}, sys;"
        "heavy = {'torch', 'transformers', 'sentence_transformers', 'torchvision', 'PIL'};"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
