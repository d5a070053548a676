"""Vectors of texts by a folder of Sentence Transformers.

    pip install 'batchpool[sentence-transformer]'
    batchpool serve --model sentence_transformer:models/all-MiniLM-L6-v2

    curl -s localhost:8000/v2/models/all-MiniLM-L6-v2/infer -d '{"text": ["Hello"]}'

The folder is one that the library has saved, with modules.json, and a vector is what the library's
own encode gives. Where the folder has prompts, the parameter `prompt_name` chooses one.

The library's tokenizer is the stage `preprocess`. A folder whose first module is no Transformer, or
whose pooling leaves the prompt out, runs in one step.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import batchpool as bp
from batchpool.models.extras import check_tokenizer, check_trust, check_weights, extra, folder_with
from batchpool.models.texts import by_length, decoded, share_cores
from batchpool.models.tokens import (
    MADE,
    Dtype,
    dtype_on,
    features_of,
    token_features,
    token_inputs,
    token_limit,
)

if TYPE_CHECKING:
    import torch

_PROMPT_NAME_BYTES = 64
_HOW_TO_MAKE_ONE = (
    "; sentence_transformers makes a folder with it of one of plain transformers:"
    " SentenceTransformer(FOLDER).save(OTHER_FOLDER)"
)
# The library would import any other class that a folder names, from the folder itself too.
_WITHOUT_CODE = ("Transformer", "Pooling", "Normalize", "Dense", "LayerNorm", "Dropout")


class SentenceTransformer(bp.Model):
    """`text` [n] bytes, UTF-8 -> `embedding` [n, dimensions] float32.

    path: the folder. max_bytes: of a text. dimensions: of a vector, 0 for the folder's; fewer cut
    it. normalize: scale vectors to length one, also where the folder does
    not. dtype: of the weights; "auto" is half precision on a GPU. cuda_graphs: capture the network
    on a GPU, which it must allow: it runs the same kernels whatever the tokens are. trust: load
    weights that are pickled, and code of the folder.
    Raises RuntimeError without the extra, FileNotFoundError and ValueError for another folder.
    """

    name = "sentence_transformer"
    outputs = [bp.Tensor("embedding", "float32", (0,))]

    def __init__(
        self,
        path: Path,
        max_bytes: int = 8192,
        dimensions: int = 0,
        normalize: bool = False,
        dtype: Dtype = "auto",
        cuda_graphs: bool = False,
        trust: bool = False,
    ) -> None:
        self._path = path = folder_with(path, "modules.json", _HOW_TO_MAKE_ONE)
        self._normalize, self._dtype, self._trust = normalize, dtype, trust
        modules = _read(path / "modules.json")
        if not trust:
            _check_modules(path, modules)
        self._dimensions = dimensions or _dimensions(path, modules)
        settings = _read(path / "config_sentence_transformers.json")
        self._prompts = {"": None, **(settings.get("prompts") or {})}
        self.inputs = [bp.Tensor("text", "bytes", (), max_bytes=max_bytes)]
        self.outputs = [bp.Tensor("embedding", "float32", (self._dimensions,))]
        if any(self._prompts.values()):
            default = settings.get("default_prompt_name") or ""
            limit = max(_PROMPT_NAME_BYTES, *map(len, self._prompts))
            self.parameters = [bp.Tensor("prompt_name", "bytes", max_bytes=limit, default=default)]
        encoder = path / modules[0]["path"] if modules else path
        if modules and modules[0]["type"].endswith(".Transformer"):
            check_weights(encoder, trust)
            check_tokenizer(encoder, trust)
        self._config = _read(encoder / "config.json")
        self._max_tokens = token_limit(encoder, self._config, max_bytes)
        is_staged = _makes_ids_only(path, modules)
        self.features = token_features(self._max_tokens) if is_staged else []
        self.cuda_graphs = cuda_graphs
        if cuda_graphs and (self.parameters or not is_staged):
            raise ValueError(
                "option cuda_graphs needs a folder without prompts, whose first module is a"
                " Transformer; leave the option out"
            )

    def load_preprocess(self) -> None:
        """The library's model for its tokenizer, without the weights."""
        self._model = self._loaded("cpu", "float32").to("meta")
        self._model.max_seq_length = min(self._model.max_seq_length or 1 << 30, self._max_tokens)

    def preprocess(self, batch: bp.Batch) -> dict[str, Any]:
        texts = decoded(batch, "text")
        chosen = self._prompts_of(batch)
        ids: list[Any] = [()] * batch.n
        types: list[Any] = [()] * batch.n
        for name in set(chosen):
            rows = [row for row, each in enumerate(chosen) if each == name]
            found = self._tokens([texts[row] for row in rows], self._prompts[name])
            real = found["attention_mask"].bool()
            own_types = found.get("token_type_ids", real * 0)
            for at, row in enumerate(rows):
                ids[row] = found["input_ids"][at][real[at]].numpy()
                types[row] = own_types[at][real[at]].numpy()
        return features_of(ids, types)

    def load(self, device: str) -> None:
        self._model = self._loaded(device, dtype_on(device, self._dtype, self._config)).eval()
        if not self.features:
            return
        # What the library gives beside the tensors of the tokens belongs to every batch.
        sample = self._tokens(["a text"], None)
        self._names = [name for name in MADE if name in sample]
        self._beside = {k: v for k, v in sample.items() if k not in MADE}

    def _loaded(self, device: str, dtype: str) -> Any:
        with extra("sentence-transformer"):
            import sentence_transformers
            import torch
            from transformers.utils.logging import disable_progress_bar
        disable_progress_bar()
        share_cores()
        kwargs = {"use_safetensors": None if self._trust else True}
        return sentence_transformers.SentenceTransformer(
            str(self._path),
            device=device,
            local_files_only=True,
            trust_remote_code=self._trust,
            model_kwargs={**kwargs, "dtype": getattr(torch, dtype)},
        )

    def infer(self, batch: bp.Batch) -> dict[str, torch.Tensor]:
        if not self.features:
            return {"embedding": self._in_one_step(batch)}
        tokens = token_inputs(batch, self._model.tokenizer, self._names)
        return {"embedding": self._vectors({**self._beside, **tokens})}

    def _in_one_step(self, batch: bp.Batch) -> torch.Tensor:
        import torch

        texts = decoded(batch, "text")
        chosen = self._prompts_of(batch)
        vectors = torch.empty((batch.n, self._dimensions), device=self._model.device)
        for name in set(chosen):
            with_prompt = np.flatnonzero([each == name for each in chosen])
            for group in by_length([texts[row] for row in with_prompt]):
                rows = with_prompt[group]
                tokens = self._tokens([texts[row] for row in rows], self._prompts[name])
                vectors[torch.from_numpy(rows).to(vectors.device)] = self._vectors(tokens)
        return vectors

    def _prompts_of(self, batch: bp.Batch) -> list[str]:
        """The name of each row's prompt; one that is not there fails its row."""
        if "prompt_name" not in batch:
            return [""] * batch.n
        chosen = [raw.decode(errors="replace") for raw in batch["prompt_name"]]
        for row, name in enumerate(chosen):
            if name not in self._prompts:
                known = ", ".join(map(repr, sorted(self._prompts)))
                text = f"prompt_name {name!r} is not known; expected one of {known}"
                batch.fail(row, bp.InvalidInput(text))
                chosen[row] = ""
        return chosen

    def _tokens(self, texts: list[str], prompt: str | None) -> dict[str, Any]:
        """Token ids of texts, padded to the longest, and what else the model takes."""
        tokens: dict[str, Any] = self._model.preprocess(texts, prompt=prompt)
        return tokens

    def _vectors(self, tokens: dict[str, Any]) -> torch.Tensor:
        import torch

        moved = {
            key: value.to(self._model.device) if isinstance(value, torch.Tensor) else value
            for key, value in tokens.items()
        }
        found: torch.Tensor = self._model(moved)["sentence_embedding"][:, : self._dimensions]
        return (
            torch.nn.functional.normalize(found.float(), dim=1)
            if self._normalize
            else found.float()
        )


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _check_modules(path: Path, modules: list[dict[str, str]]) -> None:
    """Raise ValueError for modules with code of their own, and for pickled weights."""
    for module in modules:
        package, _, kind = module["type"].rpartition(".")
        if not package.startswith("sentence_transformers.") or kind not in _WITHOUT_CODE:
            check_trust(False, f"the module {module['type']!r} of {path / 'modules.json'}")
        folder = path / module["path"]
        pickled = folder / "pytorch_model.bin"
        if pickled.is_file() and not list(folder.glob("model*.safetensors")):
            check_trust(False, f"{pickled}, which is pickled and has no safetensors beside it,")


def _makes_ids_only(path: Path, modules: list[dict[str, str]]) -> bool:
    """True if all that the modules need of a text is the ids of its tokens."""
    package, _, kind = modules[0]["type"].rpartition(".") if modules else ("", "", "")
    if not package.startswith("sentence_transformers.") or kind != "Transformer":
        return False
    pooling = [_read(path / module["path"] / "config.json") for module in modules[1:]]
    return all(settings.get("include_prompt", True) for settings in pooling)


def _dimensions(path: Path, modules: list[dict[str, str]]) -> int:
    """The dimensions that pooling and what comes behind it give; ValueError where nothing tells."""
    found = 0
    for module in modules:
        settings = _read(path / module["path"] / "config.json")
        kind = module["type"].rpartition(".")[2]
        if kind == "Pooling":
            each = settings.get("embedding_dimension") or settings.get("word_embedding_dimension")
            flags = [settings[key] for key in settings if key.startswith("pooling_mode_")]
            modes = settings.get("pooling_mode", "")
            found = int(each) * (len(modes) if isinstance(modes, list) else max(1, sum(flags)))
        elif kind == "Dense":
            found = int(settings["out_features"])
    if not found:
        raise ValueError(
            f"{path / 'modules.json'} does not tell how long a vector is; set the option dimensions"
        )
    return found
