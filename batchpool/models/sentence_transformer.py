"""Vectors of texts by a folder of Sentence Transformers.

    pip install 'batchpool[sentence-transformer]'
    batchpool serve --model sentence_transformer:models/all-MiniLM-L6-v2

    curl -s localhost:8000/v2/models/all-MiniLM-L6-v2/infer -d '{"text": ["Hello"]}'

The folder is one that the library has saved, with modules.json, and a vector is what the library's
own encode gives. Where the folder has prompts, the parameter `prompt_name` chooses one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import batchpool as bp
from batchpool.models.extras import check_trust, extra, folder_with
from batchpool.models.texts import by_length, decoded, share_cores

if TYPE_CHECKING:
    import torch

_PROMPT_NAME_BYTES = 64
# The library would import any other class that a folder names, from the folder itself too.
_WITHOUT_CODE = ("Transformer", "Pooling", "Normalize", "Dense", "LayerNorm", "Dropout")


class SentenceTransformer(bp.Model):
    """`text` [n] bytes, UTF-8 -> `embedding` [n, dimensions] float32.

    path: the folder. max_bytes: of a text. dimensions: of a vector, 0 for the folder's; fewer cut
    it. normalize: scale vectors to length one, also where the folder does
    not. dtype: of the weights. trust: load weights that are pickled, and code of the folder.
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
        dtype: Literal["float32", "float16", "bfloat16"] = "float32",
        trust: bool = False,
    ) -> None:
        self._path = path = folder_with(path, "modules.json")
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

    def load(self, device: str) -> None:
        with extra("sentence-transformer"):
            import sentence_transformers
            import torch
            from transformers.utils.logging import disable_progress_bar
        disable_progress_bar()
        share_cores()
        kwargs = {"use_safetensors": None if self._trust else True}
        self._model: Any = sentence_transformers.SentenceTransformer(
            str(self._path),
            device=device,
            local_files_only=True,
            trust_remote_code=self._trust,
            model_kwargs={**kwargs, "dtype": getattr(torch, self._dtype)},
        ).eval()

    def infer(self, batch: bp.Batch) -> dict[str, torch.Tensor]:
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
        return {"embedding": vectors}

    def _prompts_of(self, batch: bp.Batch) -> list[str]:
        """The name of each row's prompt; one that is not there fails its row."""
        if not self.parameters:
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
