"""The files of a folder tell the declaration, and what cannot be served, without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import batchpool as bp
from batchpool.model import make_instance, spec_of
from batchpool.models.causal_lm import CausalLM
from batchpool.models.decoder.model_folder import ModelFolder


def folder(path: Path, config: dict[str, Any], **files: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")  # no tensors
    for name, found in {"config": {"model_type": "llama", **config}, **files}.items():
        (path / f"{name}.json").write_text(json.dumps(found))
    return path


def made(path: Path, **options: Any) -> CausalLM:
    model = make_instance(CausalLM, "m", {"path": path, **options})
    assert isinstance(model, CausalLM)
    return model


def test_a_folder_without_weights_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    path = folder(tmp_path, {"model_type": "llama", "max_position_embeddings": 512})
    (path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"no weights .* model\.safetensors was expected"):
        make_instance(CausalLM, "m", {"path": path})


def test_the_declaration_comes_from_the_folder(tmp_path: Path) -> None:
    path = folder(
        tmp_path,
        {"model_type": "llama", "max_position_embeddings": 512, "eos_token_id": 2},
        tokenizer={},
        tokenizer_config={"chat_template": "{{ messages }}"},
    )
    spec = spec_of(made(path))
    assert spec.generates
    assert spec.inputs[0].max_shape == (511,)
    assert spec.outputs[0].max_shape == (256,)
    assert spec.text == bp.Text(str(path / "tokenizer.json"), "{{ messages }}")
    defaults = {tensor.name: tensor.default for tensor in spec.parameters}
    assert defaults == {
        "temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": -1, "ignore_eos": False,
        "max_tokens": 256,
    }  # fmt: skip
    assert spec_of(made(path, max_length=100, max_tokens=30)).outputs[0].max_shape == (30,)
    (path / "tokenizer.json").unlink()
    assert spec_of(made(path)).text is None


def test_a_folder_that_samples_gives_its_own_defaults(tmp_path: Path) -> None:
    generation = {"do_sample": True, "temperature": 0.7, "top_p": 0.8}
    path = folder(tmp_path, {"model_type": "qwen2"}, generation_config=generation)
    assert ModelFolder.read(path).sampling_defaults() == (0.7, 50, 0.8)
    path = folder(tmp_path, {"model_type": "qwen2"}, generation_config={"temperature": 0.7})
    assert ModelFolder.read(path).sampling_defaults() == (0.0, 0, 1.0)


def test_the_tokens_of_the_end_are_those_of_the_generation_configuration(tmp_path: Path) -> None:
    path = folder(tmp_path, {"eos_token_id": 2})
    assert ModelFolder.read(path).stop_ids([9]) == {2, 9}
    path = folder(tmp_path, {"eos_token_id": 2}, generation_config={"eos_token_id": [3, 4]})
    assert ModelFolder.read(path).stop_ids(()) == {3, 4}
    path = folder(tmp_path, {"eos_token_id": None}, generation_config={})
    assert ModelFolder.read(path).stop_ids(()) == frozenset()


@pytest.mark.parametrize(
    ("found", "template"),
    [
        ("one", "one"),
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "tool_use", "template": "t"}], ""),
        (None, ""),
    ],
)
def test_the_chat_template_is_found_wherever_it_stands(
    tmp_path: Path, found: Any, template: str
) -> None:
    path = folder(tmp_path, {}, tokenizer_config={"chat_template": found})
    assert ModelFolder.read(path).chat_template == template
    (path / "chat_template.jinja").write_text("file")
    assert ModelFolder.read(path).chat_template == "file"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, r"\(t5\) .*: it is an encoder-decoder"),
        ({"model_type": "mistral", "sliding_window": 512}, r"512 tokens .* max_length to 512"),
        (
            {"model_type": "gemma2", "sliding_window": 4,
             "layer_types": ["sliding_attention", "full_attention"]},
            "look back 4 tokens",
        ),
        (
            {"model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"]},
            "it has layers of linear_attention",
        ),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_served_is_refused_by_its_configuration(
    tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        made(folder(tmp_path, config))


@pytest.mark.parametrize(
    ("name", "found", "reason"),
    [
        ("config", {"model_type": None}, r"/config\.json names no model_type"),
        ("config", [], r"/config\.json holds a JSON list; an object was expected"),
        ("config", {"model_type": "llama", "n_positions": "x"}, r"/config\.json has values that"),
        ("config", {"model_type": "a", "text_config": 7}, r"/config\.json has values that"),
        (
            "generation_config",
            {"do_sample": True, "temperature": "hot"},
            r"/generation_config\.json has values .* 'hot'",
        ),
        ("tokenizer_config", {"chat_template": [{"x": 1}]}, r"/tokenizer_config\.json has values"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, found: Any, reason: str
) -> None:
    path = folder(tmp_path, {})
    (path / f"{name}.json").write_text(json.dumps(found))
    with pytest.raises(ValueError, match=reason):
        made(path)


@pytest.mark.parametrize(
    "config",
    [
        {"sliding_window": 4096},
        {"sliding_window": 512, "use_sliding_window": False},
        {"sliding_window": 512, "layer_types": ["full_attention"]},
        {"sliding_window": None},
    ],
)
def test_a_window_as_long_as_a_sequence_is_no_obstacle(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    made(folder(tmp_path, {"model_type": "mistral", **config}))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_length": 513}, "max_length is 513, but the model in .* takes 512 tokens"),
        ({"max_length": 1}, "max_length is 1; 2 or more"),
        ({"max_tokens": 512}, "max_tokens is 512; 1 to 511 was expected"),
        ({"chunk_tokens": -1}, "chunk_tokens and kv_gib: 0 or more"),
    ],
)
def test_wrong_options_are_told(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    path = folder(tmp_path, {"max_position_embeddings": 512})
    with pytest.raises(ValueError, match=reason):
        made(path, **options)


def test_a_decoder_is_described_without_its_heavy_libraries(tmp_path: Path) -> None:
    path = folder(tmp_path, {"max_position_embeddings": 512})
    code = (
        "import sys; from batchpool.models.causal_lm import CausalLM;"
        f"CausalLM({str(path)!r} and __import__('pathlib').Path({str(path)!r}));"
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
