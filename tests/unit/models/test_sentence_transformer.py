"""A folder of Sentence Transformers gives the vectors of its own `encode`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from batchpool.model import Batch, make_instance, spec_of
from batchpool.models.sentence_transformer import SentenceTransformer
from tests.lazy import library
from tests.unit.models.files.written_over import write_over
from tests.unit.models.staged import Pair
from tests.unit.models.text_folders import TEXTS, rewrite, sentence_transformer

sentence_transformers = library("sentence_transformers")
torch = library("torch")
COUNTED = (bp.Tensor("prompt_tokens", "int64"), bp.Tensor("truncated", "bool"))
PROMPTS = {"query": "query : ", "document": ""}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_transformer(tmp_path_factory.mktemp("st"), prompts=PROMPTS, dense=12)


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Any:
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu")


def made(folder: Path, **options: Any) -> SentenceTransformer:
    model = make_instance(SentenceTransformer, "m", {"path": folder, **options})
    assert isinstance(model, SentenceTransformer)
    return model


def batch_of(texts: list[Any], prompt: str = "") -> Batch:
    raw = [text if isinstance(text, bytes) else text.encode() for text in texts]
    prompts = np.array([prompt.encode()] * len(raw), object)
    return Batch(len(raw), {"text": np.array(raw, object), "prompt_name": prompts})


def vectors(model: Pair, batch: Batch) -> Any:
    return model.run(batch)["embedding"]


@pytest.mark.parametrize("prompt", ["", "query", "document"])
def test_vectors_are_those_of_encode_alone_and_in_company(
    folder: Path, encoder: Any, prompt: str
) -> None:
    model = Pair(lambda: made(folder))
    expected = encoder.encode(TEXTS, prompt=PROMPTS.get(prompt, ""))
    together = vectors(model, batch_of(TEXTS, prompt))
    alone = np.concatenate([vectors(model, batch_of([text], prompt)) for text in TEXTS])
    for found in (together, alone):
        assert found.shape == (len(TEXTS), 12)
        assert np.sum(found * expected, axis=1).min() > 0.9999
        np.testing.assert_allclose(found, expected, atol=1e-5)


def counted(model: Pair, texts: list[str], prompt: str) -> list[int]:
    found: list[int] = np.asarray(model.run(batch_of(texts, prompt))["prompt_tokens"]).tolist()
    return found


def lengths(encoder: Any, texts: list[str], prompt: str) -> list[int]:
    """The tokens of each text alone, as the library's tokenizer cuts it."""
    return [
        len(encoder.tokenizer(prompt + text, truncation=True, max_length=32)["input_ids"])
        for text in texts
    ]


@pytest.mark.parametrize("prompt", ["", "query"])
def test_tokens_are_counted_as_they_are_used(folder: Path, encoder: Any, prompt: str) -> None:
    model = Pair(lambda: made(folder))
    texts = ["", "the dog", "the dog " * 100, *TEXTS]
    found = counted(model, texts, prompt)
    assert found == lengths(encoder, texts, PROMPTS.get(prompt, ""))
    assert found[2] == 32, "a text is cut"
    assert len(set(found)) > 2


LONG = "a cat sleeps " * 40


def in_one_step(to: Path) -> Path:
    """A folder whose pooling leaves the prompt out."""
    folder = sentence_transformer(to, prompts=PROMPTS)
    rewrite(folder / "1_Pooling" / "config.json", include_prompt=False)
    return folder


@pytest.mark.parametrize("staged", [True, False], ids=["staged", "in one step"])
def test_the_answer_tells_which_texts_were_cut(
    folder: Path, encoder: Any, tmp_path: Path, staged: bool
) -> None:
    chosen = folder if staged else in_one_step(tmp_path)
    model = Pair(lambda: made(chosen))
    assert bool(model.spec.features) is staged
    texts = ["good", LONG, "cat " * 30, "cat " * 31, "cat " * 28]
    assert model.run(batch_of(texts))["truncated"].tolist() == [False, True, False, True, False]
    # The prompt has two tokens.
    found = model.run(batch_of(texts, "query"))["truncated"].tolist()
    assert found == [False, True, True, True, False]


@pytest.mark.parametrize("staged", [True, False], ids=["staged", "in one step"])
def test_texts_may_be_refused_instead_each_for_its_row_alone(
    folder: Path, encoder: Any, tmp_path: Path, staged: bool
) -> None:
    chosen = folder if staged else in_one_step(tmp_path)
    model = Pair(lambda: made(chosen, truncate=False))
    assert "truncated" not in [tensor.name for tensor in model.spec.outputs]
    vectors(model, batch_of(["good", LONG, "cat " * 30], "query"))
    whole = len(encoder.tokenizer("query : " + LONG, verbose=False)["input_ids"])
    assert sorted(model.refused) == [1, 2]
    assert model.refused[1].details == {"tokens": whole, "max_tokens": 32}
    assert model.refused[2].details == {"tokens": 34, "max_tokens": 32}
    assert str(model.refused[1]).startswith(f"text has {whole} tokens; at most 32 are taken")


def test_rows_of_one_batch_have_prompts_of_their_own(folder: Path, encoder: Any) -> None:
    model = Pair(lambda: made(folder))
    batch = batch_of(["the dog", "the dog", b"\xff", "the dog"])
    batch["prompt_name"][:] = [b"query", b"", b"query", b"queri"]
    found = vectors(model, batch)
    np.testing.assert_allclose(found[0], encoder.encode("the dog", prompt_name="query"), atol=1e-5)
    np.testing.assert_allclose(found[1], encoder.encode("the dog", prompt=""), atol=1e-5)
    assert np.abs(found[0] - found[1]).max() > 1e-3
    assert sorted(model.refused) == [2, 3]
    assert str(model.refused[2]) == "text is not valid UTF-8: invalid start byte at byte 0"
    text = "prompt_name 'queri' is not known; expected one of '', 'document', 'query'"
    assert str(model.refused[3]) == text
    assert model.refused[3].details == {"parameter": "prompt_name"}


def test_vectors_may_be_cut_and_scaled(folder: Path, encoder: Any) -> None:
    model = Pair(lambda: made(folder, dimensions=5, normalize=True))
    expected = encoder.encode(TEXTS, truncate_dim=5, normalize_embeddings=True)
    np.testing.assert_allclose(vectors(model, batch_of(TEXTS)), expected, atol=1e-5)


def test_the_folder_tells_the_tensors_without_its_libraries(folder: Path) -> None:
    spec = spec_of(made(folder, max_bytes=99))
    assert spec.inputs == (bp.Tensor("text", "bytes", (), max_bytes=99),)
    vector = bp.Tensor("embedding", "float32", (12,))
    assert spec.outputs == (*COUNTED, vector)
    assert [parameter.default for parameter in spec.parameters] == [""]


def small(tmp_path: Path, modules: list[Any], **files: Any) -> Path:
    """A folder of nothing but settings. files: of the module "1"."""
    (tmp_path / "1").mkdir(exist_ok=True)
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    for name, settings in files.items():
        (tmp_path / "1" / f"{name}.json").write_text(json.dumps(settings))
    return tmp_path


def module(kind: str) -> dict[str, str]:
    return {"path": "1", "type": kind}


@pytest.mark.parametrize(
    ("settings", "dimensions"),
    [
        ({"word_embedding_dimension": 8, "pooling_mode_cls_token": True}, 8),
        (
            {
                "word_embedding_dimension": 8,
                "pooling_mode_cls_token": True,
                "pooling_mode_max_tokens": True,
                "pooling_mode_mean_tokens": False,
            },
            16,
        ),
        ({"embedding_dimension": 8, "pooling_mode": "mean"}, 8),
        ({"embedding_dimension": 8, "pooling_mode": ["mean", "max", "cls"]}, 24),
    ],
)
def test_pooling_tells_the_length_of_a_vector(
    tmp_path: Path, settings: dict[str, Any], dimensions: int
) -> None:
    folder = small(tmp_path, [module("sentence_transformers.models.Pooling")], config=settings)
    assert spec_of(made(folder)).outputs[-1].shape == (dimensions,)
    assert spec_of(made(folder)).parameters == ()


def test_a_folder_that_cannot_be_served_is_told_why(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=rf"no modules.json in the folder {tmp_path}, which .*\.save\("
    ):
        made(tmp_path)
    folder = small(tmp_path, [module("sentence_transformers.models.LayerNorm")])
    with pytest.raises(ValueError, match="does not tell how long a vector is; set the option dim"):
        made(folder)
    assert spec_of(made(folder, dimensions=3)).outputs[-1].shape == (3,)
    folder = small(tmp_path, [module("sentence_transformers.models.Pooling")])
    with pytest.raises(FileNotFoundError, match=r"there is no .*/1/config\.json, which .*Pooling"):
        made(folder)
    for settings in ({}, {"embedding_dimension": "wide"}, {"embedding_dimension": None}):
        small(
            tmp_path, [module("sentence_transformers.models.Pooling")], config={"a": 1, **settings}
        )
        with pytest.raises(ValueError, match=r"/1/config\.json has values that were not expected"):
            made(folder)
    small(tmp_path, [{"path": "1"}])
    with pytest.raises(ValueError, match=r"/modules\.json has values .*: no 'type' in it"):
        made(folder)


def test_texts_that_nobody_counts_cannot_be_refused_by_their_tokens(tmp_path: Path) -> None:
    folder = small(
        tmp_path,
        [module("sentence_transformers.models.Pooling")],
        config={"embedding_dimension": 8, "pooling_mode": "mean"},
    )
    assert [tensor.name for tensor in spec_of(made(folder)).outputs] == ["embedding"]
    with pytest.raises(ValueError, match=r"^option truncate is False, .* is no Transformer"):
        made(folder, truncate=False)


def test_a_vector_is_not_longer_than_the_folders(folder: Path) -> None:
    for dimensions in (13, -1):
        with pytest.raises(
            ValueError, match=rf"option dimensions is {dimensions}; 1 to 12 was exp"
        ):
            made(folder, dimensions=dimensions)


def changed(folder: Path, to: Path) -> Path:
    """A copy of the folder, whose files may be changed."""
    return Path(shutil.copytree(folder, to / "changed"))


def test_a_folder_that_lacks_weights_is_refused_by_their_names(
    folder: Path, tmp_path: Path
) -> None:
    """The library would fill them with random numbers, and every vector would mean nothing."""
    path = changed(folder, tmp_path)
    safetensors = library("safetensors.torch")
    weights = safetensors.load_file(path / "model.safetensors")
    assert any("layer.1." in name for name in weights)
    kept = {name: tensor for name, tensor in weights.items() if "layer.1." not in name}
    safetensors.save_file(kept, path / "model.safetensors", metadata={"format": "pt"})
    model = made(path)
    for load in (model.load_preprocess, lambda: model.load("cpu")):
        with pytest.raises(ValueError, match=r"no weights for encoder\.layer\.1\..* of BertModel"):
            load()


def test_vectors_do_not_change_with_a_file_that_is_written_over(
    folder: Path, tmp_path: Path
) -> None:
    """As by a copy of new weights onto the old ones, for a reload to come."""
    path = changed(folder, tmp_path)
    model = Pair(lambda: made(path))
    before = vectors(model, batch_of(TEXTS))
    for file in path.rglob("*.safetensors"):
        write_over(file)
    np.testing.assert_array_equal(vectors(model, batch_of(TEXTS)), before)


def test_a_pooler_that_nothing_reads_may_be_missing(folder: Path, tmp_path: Path) -> None:
    path = changed(folder, tmp_path)
    safetensors = library("safetensors.torch")
    weights = safetensors.load_file(path / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "pooler" not in name}
    assert len(kept) < len(weights)
    safetensors.save_file(kept, path / "model.safetensors", metadata={"format": "pt"})
    expected = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    found = vectors(Pair(lambda: made(path)), batch_of(TEXTS))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_vectors_of_another_length_than_the_folder_says_are_not_cut_without_a_word(
    tmp_path: Path,
) -> None:
    folder = sentence_transformer(tmp_path)
    told = next(folder.glob("*Pooling/config.json"))
    key = next(key for key in json.loads(told.read_text()) if "embedding_dimension" in key)
    rewrite(told, **{key: 9})
    model = made(folder)
    assert spec_of(model).outputs[-1].shape == (9,)
    with pytest.raises(
        ValueError, match=r"makes vectors of 16 dimensions; 9 were expected, by its"
    ):
        model.load("cpu")


def test_code_and_pickles_of_a_folder_need_trust(tmp_path: Path) -> None:
    for kind in ("my_code.Layer", "my_code.Pooling", "sentence_transformers.models.Router"):
        folder = small(tmp_path, [module(kind)])
        with pytest.raises(ValueError, match=rf"'{kind}' .* set the option trust = true"):
            made(folder, dimensions=3)
    made(folder, dimensions=3, trust=True)
    (folder / "modules.json").write_text(json.dumps([module("sentence_transformers.models.Dense")]))
    (folder / "1" / "config.json").write_text(json.dumps({"out_features": 3}))
    (folder / "1" / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"pytorch_model.bin, which is pickled .* trust = true"):
        made(folder)
    (folder / "1" / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"1/model\.safetensors, of 0 bytes, is no whole file"):
        made(folder)
    (folder / "1" / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (vector,) = spec_of(made(folder)).outputs  # nothing tells how many tokens a text has
    assert vector.shape == (3,)
    rewrite(folder / "1" / "config.json", activation_function="torch.nn.modules.activation.ReLU")
    made(folder)
    rewrite(folder / "1" / "config.json", activation_function="my_code.Activation")
    with pytest.raises(ValueError, match=r"activation 'my_code\.Activation' .* trust = true"):
        made(folder)  # the library would leave it out, with a warning
    made(folder, trust=True)


def test_a_default_prompt_is_the_parameters_default(tmp_path: Path) -> None:
    folder = small(
        tmp_path,
        [module("sentence_transformers.models.Pooling")],
        config={"embedding_dimension": 8, "pooling_mode": "mean"},
    )
    path = folder / "config_sentence_transformers.json"
    path.write_text("{}")
    rewrite(path, prompts={"a": "x: "}, default_prompt_name="a")
    assert spec_of(made(folder)).parameters[0].default == "a"
    rewrite(path, default_prompt_name="b")
    with pytest.raises(
        ValueError, match=r"config_sentence_transformers\.json .* 'b' is none of its"
    ):
        made(folder)
    long = "\N{GREEK SMALL LETTER OMEGA}" * 60  # of 120 bytes
    rewrite(path, prompts={long: "x: "}, default_prompt_name=long)
    assert spec_of(made(folder)).parameters[0].default == long


def test_a_folder_whose_pooling_leaves_the_prompt_out_runs_in_one_step(
    tmp_path: Path,
) -> None:
    folder = sentence_transformer(tmp_path, prompts=PROMPTS)
    rewrite(folder / "1_Pooling" / "config.json", include_prompt=False)
    assert spec_of(made(folder)).features == ()
    encoder = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    model = Pair(lambda: made(folder))
    found = vectors(model, batch_of(TEXTS, "query"))
    np.testing.assert_allclose(found, encoder.encode(TEXTS, prompt=PROMPTS["query"]), atol=1e-5)
    assert counted(model, TEXTS, "query") == lengths(encoder, TEXTS, PROMPTS["query"])


def test_preprocessing_holds_no_weights_and_the_limit_of_the_folder(folder: Path) -> None:
    spec = spec_of(made(folder))
    assert [tensor.max_shape for tensor in spec.features] == [(32,), (32,), ()]
    model = made(folder)
    model.load_preprocess()
    assert {str(each.device) for each in model._model.parameters()} == {"meta"}


def test_graphs_are_for_folders_without_prompts(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="option cuda_graphs needs a folder without prompts"):
        made(folder, cuda_graphs=True)
    model = made(sentence_transformer(tmp_path), cuda_graphs=True)
    assert model.cuda_graphs
    assert spec_of(model).features
