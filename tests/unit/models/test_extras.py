"""A path that is no folder of a model, and weights that may not be loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from batchpool.models.causal_lm import CausalLM
from batchpool.models.extras import (
    check_attention,
    check_tokenizer,
    check_weights,
    extra,
    file_at,
    folder_with,
    lines_of,
)
from batchpool.models.text_classifier import TextClassifier
from tests.unit.models.text_folders import rewrite


def weights(path: Path) -> None:
    """A whole file of safetensors, without tensors."""
    path.write_bytes((2).to_bytes(8, "little") + b"{}")


def test_a_package_that_is_not_installed_is_told_with_its_command() -> None:
    with (
        pytest.raises(
            RuntimeError, match=r"needs the package no_such_package, .* 'batchpool\[onnx\]'"
        ),
        extra("onnx"),
    ):
        import no_such_package  # type: ignore[import-not-found]  # noqa: F401


@pytest.mark.parametrize("wrapped", [True, False])
def test_packages_that_cannot_be_imported_are_told_with_the_first_cause(wrapped: bool) -> None:
    with pytest.raises(RuntimeError) as caught, extra("sentence-transformer"):
        try:
            raise RuntimeError("operator torchvision::nms does not exist")
        except RuntimeError as error:
            if not wrapped:
                raise
            # As transformers does, which gives no name of a module.
            raise ModuleNotFoundError("Could not import module 'PreTrainedModel'.") from error
    text = str(caught.value)
    assert text.startswith(
        "the packages of batchpool[sentence-transformer] are installed, but cannot be imported:"
        " RuntimeError: operator torchvision::nms does not exist; torch and torchvision must be of"
        " one build"
    )
    assert "--index-url https://download.pytorch.org/whl/cpu" in text


def test_the_advice_about_torchvision_is_for_its_errors_alone() -> None:
    with pytest.raises(RuntimeError) as caught, extra("onnx"):
        raise ImportError("libcudart.so.13: cannot open shared object file")
    assert str(caught.value) == (
        "the packages of batchpool[onnx] are installed, but cannot be imported: ImportError:"
        " libcudart.so.13: cannot open shared object file"
    )


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("", r"no config\.json in the folder /.*, which option path names"),
        ("weights", r"weights is a file; option path takes the folder that has config\.json"),
        ("org/model", r"no folder /.*/org/model, .* nothing is fetched from a hub"),
    ],
)
def test_a_path_that_is_no_folder_of_a_model(tmp_path: Path, path: str, text: str) -> None:
    (tmp_path / "weights").touch()
    with pytest.raises(FileNotFoundError, match=text):
        folder_with(tmp_path / path, "config.json")


def test_a_path_that_is_no_file_of_a_model(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"is a folder; option path takes a file"):
        file_at(tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"there is no file /.*net\.onnx, which option path"
    ):
        file_at(tmp_path / "net.onnx")
    (tmp_path / "net.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:7")
    with pytest.raises(ValueError, match=r"net\.onnx is a pointer of Git LFS .*`git lfs pull`"):
        file_at(tmp_path / "net.onnx")


def test_weights_are_there_and_need_no_trust(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no weights .* model\.safetensors was expected"):
        check_weights(tmp_path, True)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin is pickled.* trust = true"):
        check_weights(tmp_path, False)
    check_weights(tmp_path, True)
    weights(tmp_path / "model-00001-of-00002.safetensors")
    check_weights(tmp_path, False)
    (tmp_path / "model-00002-of-00002.safetensors").touch()
    with pytest.raises(ValueError, match=r"00002\.safetensors, of 0 bytes, is no whole file"):
        check_weights(tmp_path, False)


def test_of_weights_in_several_files_the_missing_one_is_named(tmp_path: Path) -> None:
    names = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    index = {"weight_map": {"a": names[0], "b": names[1], "c": names[2], "d": names[0]}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    weights(tmp_path / names[0])
    text = rf"no {names[1]} in the folder /.*, one of 3 files .*; 2 are missing"
    with pytest.raises(FileNotFoundError, match=text):
        check_weights(tmp_path, False)
    for name in names[1:]:
        weights(tmp_path / name)
    check_weights(tmp_path, False)
    for text in ("[]", "{", "{}", '{"weight_map": 7}'):
        (tmp_path / "model.safetensors.index.json").write_text(text)
        with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json"):
            check_weights(tmp_path, False)


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "spiece.model", "source.spm"])
def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path, name: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    with pytest.raises(FileNotFoundError, match=r"no tokenizer .* tokenizer\.json was expected"):
        check_tokenizer(tmp_path, False)
    check_tokenizer(tmp_path, True)
    (tmp_path / name).touch()
    check_tokenizer(tmp_path, False)


def test_a_tokenizer_of_bytes_has_no_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    check_tokenizer(tmp_path, False)


@pytest.mark.parametrize("file", ["config.json", "sentence_bert_config.json"])
@pytest.mark.parametrize(
    "settings",
    [
        {"attn_implementation": "someone/kernel"},
        {"_attn_implementation": "someone/kernel:attend"},
        {"attn_implementation": {"text_config": "sdpa", "vision_config": "someone/kernel"}},
        {"text_config": {"attn_implementation": "someone/kernel"}},
        {"model_kwargs": {"attn_implementation": "someone/kernel"}},
    ],
)
def test_attention_from_a_hub_needs_trust(tmp_path: Path, file: str, settings: object) -> None:
    (tmp_path / file).write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=rf"'someone/kernel.*{file} names, .* trust = true"):
        check_attention(tmp_path, trust=False)
    check_attention(tmp_path, trust=True)


def test_usual_attention_needs_no_trust(tmp_path: Path) -> None:
    check_attention(tmp_path, trust=False)
    for name in ("sdpa", "eager", "flash_attention_2", None, {"": "sdpa"}):
        (tmp_path / "config.json").write_text(json.dumps({"attn_implementation": name}))
        check_attention(tmp_path, trust=False)


@pytest.mark.parametrize("model", [TextClassifier, CausalLM])
def test_models_look_for_attention_from_a_hub(tmp_path: Path, model: type) -> None:
    head = json.dumps({"w": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "vocab_size": 9,
                "max_position_embeddings": 9,
                "eos_token_id": 1,
            }
        )
    )
    rewrite(tmp_path / "config.json", attn_implementation="someone/kernel")
    with pytest.raises(ValueError, match="attention from 'someone/kernel'"):
        model(tmp_path)


def test_the_lines_of_a_file_that_an_option_names(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError,
        match=r"no file /.*/none\.txt, which option labels names; a path",
    ):
        lines_of(tmp_path / "none.txt", "labels")
    (tmp_path / "labels.txt").write_bytes("läbel\nb\n".encode())
    assert lines_of(tmp_path / "labels.txt", "labels") == ["läbel", "b"]
    (tmp_path / "labels.txt").write_bytes("läbel".encode("latin-1"))
    with pytest.raises(ValueError, match=r"labels\.txt, which option labels names, is no UTF-8 at"):
        lines_of(tmp_path / "labels.txt", "labels")
