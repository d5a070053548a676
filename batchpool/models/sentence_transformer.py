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

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import batchpool as bp
from batchpool.models.bounds import AtLeastOne, AtLeastZero
from batchpool.models.extras import (
    check_attention,
    check_tokenizer,
    check_trust,
    check_weights,
    extra,
    folder_with,
)
from batchpool.models.files.json_files import json_object, json_objects, values_of
from batchpool.models.files.weight_files import check_safetensors
from batchpool.models.long_texts import TRUNCATED, refuse_long, whole_lengths
from batchpool.models.pretrained import keep_weights, whole_models
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
_POOLER = "pooler"  # of the network; many folders lack it, and the library has pooling of its own
_HOW_TO_MAKE_ONE = (
    "; sentence_transformers makes a folder with it of one of plain transformers:"
    " SentenceTransformer(FOLDER).save(OTHER_FOLDER)"
)
# The library would import any other class that a folder names, from the folder itself too.
_WITHOUT_CODE = ("Transformer", "Pooling", "Normalize", "Dense", "LayerNorm", "Dropout")


class SentenceTransformer(bp.Model):
    """`text` [n] bytes, UTF-8 -> `prompt_tokens` [n] int64, `truncated` [n] bool, `embedding`
    [n, dimensions] float32.

    prompt_tokens: that each text took, cut and with its prompt, for the `usage` of OpenAI's
    clients. truncated: whether it was cut. A folder whose first module is no Transformer has
    neither output. truncate: texts of more tokens than the model takes are cut, as the library
    does; False refuses them, and there is no output `truncated`.
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
        max_bytes: AtLeastOne = 8192,
        dimensions: AtLeastZero = 0,
        normalize: bool = False,
        truncate: bool = True,
        dtype: Dtype = "auto",
        cuda_graphs: bool = False,
        trust: bool = False,
    ) -> None:
        self._path = path = folder_with(path, "modules.json", _HOW_TO_MAKE_ONE)
        self._normalize, self._dtype, self._trust = normalize, dtype, trust
        modules = json_objects(path / "modules.json")
        with values_of(path / "modules.json"):
            parts = [(str(module["type"]), path / module["path"]) for module in modules]
        if not trust:
            _check_modules(path / "modules.json", parts)
        self._told_dimensions = told = _dimensions(parts)
        self._dimensions = dimensions or told
        if not self._dimensions:
            raise ValueError(
                f"{path / 'modules.json'} does not tell how long a vector is; set the option"
                " dimensions"
            )
        if told and not 0 < self._dimensions <= told:
            raise ValueError(
                f"option dimensions is {dimensions}; 1 to {told} was expected, since vectors of the"
                f" folder {path.absolute()} have {told}"
            )
        settings = json_object(path / "config_sentence_transformers.json")
        with values_of(path / "config_sentence_transformers.json"):
            self._prompts = {"": None, **(settings.get("prompts") or {})}
            default = settings.get("default_prompt_name") or ""
            longest = max(len(name.encode()) for name in [*self._prompts, default])
            if default not in self._prompts:
                raise ValueError(f"default_prompt_name {default!r} is none of its prompts")
        self.inputs = [bp.Tensor("text", "bytes", (), max_bytes=max_bytes)]
        self._counts = bool(parts) and _is_of_library(parts[0][0], "Transformer")
        if not self._counts and not truncate:
            raise ValueError(
                f"option truncate is False, and the first module in {path / 'modules.json'} is no"
                " Transformer, of which nobody knows how many tokens a text has; leave it out"
            )
        self._truncate = truncate
        counted = [bp.Tensor("prompt_tokens", "int64")] if self._counts else []
        counted += [bp.Tensor(TRUNCATED, "bool")] if self._counts and truncate else []
        self.outputs = [*counted, bp.Tensor("embedding", "float32", (self._dimensions,))]
        if any(self._prompts.values()):
            limit = max(_PROMPT_NAME_BYTES, longest)
            self.parameters = [bp.Tensor("prompt_name", "bytes", max_bytes=limit, default=default)]
        encoder = parts[0][1] if parts else path
        if parts and parts[0][0].endswith(".Transformer"):
            check_weights(encoder, trust)
            check_attention(encoder, trust)
            check_tokenizer(encoder, trust)
        how = json_object(encoder / "sentence_bert_config.json")
        self._uses_pooler = "pooler_output" in str(how)
        self._config = json_object(encoder / "config.json")
        self._max_tokens = token_limit(encoder, self._config, max_bytes)
        is_staged = _makes_ids_only(parts)
        self.features = token_features(self._max_tokens, truncate=truncate) if is_staged else []
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
        wholes = np.zeros(batch.n, np.int64)
        for name in set(chosen):
            rows = [row for row, each in enumerate(chosen) if each == name]
            found = self._tokens([texts[row] for row in rows], self._prompts[name])
            wholes[rows] = self._wholes(found, [texts[row] for row in rows], self._prompts[name])
            real = found["attention_mask"].bool()
            own_types = found.get("token_type_ids", real * 0)
            for at, row in enumerate(rows):
                ids[row] = found["input_ids"][at][real[at]].numpy()
                types[row] = own_types[at][real[at]].numpy()
        features = features_of(ids, types)
        lengths = [len(row) for row in ids]
        if self._truncate:
            return {**features, TRUNCATED: np.greater(wholes, lengths)}
        refuse_long(batch, wholes, lengths)
        return features

    def _wholes(self, found: dict[str, Any], texts: list[str], prompt: str | None) -> list[int]:
        """The tokens of each text, with its prompt, before they were cut."""
        return whole_lengths(
            found,
            found["attention_mask"].sum(dim=1).tolist(),
            self._model.max_seq_length or self._max_tokens,
            lambda at: len(
                self._model.tokenizer((prompt or "") + texts[at], verbose=False)["input_ids"]
            ),
        )

    def load(self, device: str) -> None:
        dtype = dtype_on(device, self._dtype, self._config)
        self._model = keep_weights(self._loaded(device, dtype).eval())
        sample = self._tokens(["a text"], None)
        self._check_length(sample)
        if not self.features:
            return
        # What the library gives beside the tensors of the tokens belongs to every batch.
        self._names = [name for name in MADE if name in sample]
        self._beside = {k: v for k, v in sample.items() if k not in MADE}

    def _check_length(self, sample: dict[str, Any]) -> None:
        """Raise ValueError for vectors that are not as long as the folder says: they would be cut
        without a word."""
        import torch

        with torch.inference_mode():
            found = self._model(self._moved(sample))["sentence_embedding"].shape[1]
        told = self._told_dimensions
        if found < self._dimensions or found != (told or found):
            raise ValueError(
                f"the model in {self._path.absolute()} makes vectors of {found} dimensions;"
                f" {told or self._dimensions} were expected, by"
                f" {'its own files' if told else 'the option dimensions'}"
            )

    def _loaded(self, device: str, dtype: str) -> Any:
        with extra("sentence-transformer"):
            import sentence_transformers
            import torch
            from transformers.utils.logging import disable_progress_bar
        disable_progress_bar()
        share_cores()
        kwargs = {"use_safetensors": None if self._trust else True}
        with whole_models(self._path, ignored="" if self._uses_pooler else _POOLER):
            return sentence_transformers.SentenceTransformer(
                str(self._path),
                device=device,
                local_files_only=True,
                trust_remote_code=self._trust,
                model_kwargs={**kwargs, "dtype": getattr(torch, dtype)},
            )

    def infer(self, batch: bp.Batch) -> dict[str, torch.Tensor]:
        import torch

        if not self.features:
            return self._in_one_step(batch)
        tokens = token_inputs(batch, self._model.tokenizer, self._names)
        lengths = torch.as_tensor(batch.sizes["ids"], device=batch["ids"].device)[:, 0]
        vectors = self._vectors({**self._beside, **tokens})
        # A copy, since a CUDA graph's outputs are none of its inputs.
        cut = {TRUNCATED: batch[TRUNCATED].clone()} if self._truncate else {}
        return {"prompt_tokens": lengths, **cut, "embedding": vectors}

    def _in_one_step(self, batch: bp.Batch) -> dict[str, torch.Tensor]:
        import torch

        texts = decoded(batch, "text")
        chosen = self._prompts_of(batch)
        vectors = torch.empty((batch.n, self._dimensions), device=self._model.device)
        counts = torch.zeros(batch.n, dtype=torch.int64)
        wholes = np.zeros(batch.n, np.int64)
        for name in set(chosen):
            with_prompt = np.flatnonzero([each == name for each in chosen])
            for group in by_length([texts[row] for row in with_prompt]):
                rows = with_prompt[group]
                own = [texts[row] for row in rows]
                tokens = self._tokens(own, self._prompts[name])
                if self._counts:  # before pooling leaves a prompt out of the mask
                    wholes[rows] = self._wholes(tokens, own, self._prompts[name])
                    counts[torch.from_numpy(rows)] = tokens["attention_mask"].sum(dim=1).cpu()
                vectors[torch.from_numpy(rows).to(vectors.device)] = self._vectors(tokens)
        if not self._counts:
            return {"embedding": vectors}
        found = {"embedding": vectors, "prompt_tokens": counts}
        if self._truncate:
            return {**found, TRUNCATED: torch.from_numpy(wholes > counts.numpy())}
        refuse_long(batch, wholes, counts.tolist())
        return found

    def _prompts_of(self, batch: bp.Batch) -> list[str]:
        """The name of each row's prompt; one that is not there fails its row."""
        if "prompt_name" not in batch:
            return [""] * batch.n
        chosen = [raw.decode(errors="replace") for raw in batch["prompt_name"]]
        for row, name in enumerate(chosen):
            if name not in self._prompts:
                known = ", ".join(map(repr, sorted(self._prompts)))
                text = f"prompt_name {name!r} is not known; expected one of {known}"
                batch.fail(row, bp.InvalidInput(text, {"parameter": "prompt_name"}))
                chosen[row] = ""
        return chosen

    def _tokens(self, texts: list[str], prompt: str | None) -> dict[str, Any]:
        """Token ids of texts, padded to the longest, and what else the model takes."""
        tokens: dict[str, Any] = self._model.preprocess(texts, prompt=prompt)
        return tokens

    def _moved(self, tokens: dict[str, Any]) -> dict[str, Any]:
        """A tokenizer's tensors on the model's device, and what else it gave."""
        import torch

        return {
            key: value.to(self._model.device) if isinstance(value, torch.Tensor) else value
            for key, value in tokens.items()
        }

    def _vectors(self, tokens: dict[str, Any]) -> torch.Tensor:
        import torch

        found: torch.Tensor = self._model(self._moved(tokens))["sentence_embedding"][
            :, : self._dimensions
        ]
        return (
            torch.nn.functional.normalize(found.float(), dim=1)
            if self._normalize
            else found.float()
        )


def _check_modules(file: Path, parts: Sequence[tuple[str, Path]]) -> None:
    """Raise ValueError for modules with code of their own, and for weights that are pickled or not
    whole. parts: class
    and folder of each module that the file lists."""
    for name, folder in parts:
        if not _is_of_library(name, *_WITHOUT_CODE):
            check_trust(False, f"the module {name!r} of {file}")
        # The library would leave such a function out, and vectors would be others.
        settings = json_object(folder / "config.json") if _is_of_library(name, "Dense") else {}
        activation = str(settings.get("activation_function") or "torch.")
        if not activation.startswith("torch."):
            check_trust(False, f"the activation {activation!r} of {folder / 'config.json'}")
        pickled = folder / "pytorch_model.bin"
        if pickled.is_file() and not list(folder.glob("model*.safetensors")):
            check_trust(False, f"{pickled}, which is pickled and has no safetensors beside it,")
        for weights in folder.glob("model*.safetensors"):
            check_safetensors(weights)


def _is_of_library(name: str, *kinds: str) -> bool:
    """True for a module of the library that is of one of these kinds, by its type in a folder."""
    package, _, kind = name.rpartition(".")
    return package.startswith("sentence_transformers.") and kind in kinds


def _makes_ids_only(parts: Sequence[tuple[str, Path]]) -> bool:
    """True if all that the modules need of a text is the ids of its tokens."""
    if not parts or not _is_of_library(parts[0][0], "Transformer"):
        return False
    pooling = [json_object(folder / "config.json") for _, folder in parts[1:]]
    return all(settings.get("include_prompt", True) for settings in pooling)


def _dimensions(parts: Sequence[tuple[str, Path]]) -> int:
    """The dimensions that pooling and what comes behind it give; 0 where nothing tells."""
    found = 0
    for name, folder in parts:
        kind = name.rpartition(".")[2]
        if kind not in ("Pooling", "Dense"):
            continue
        settings = json_object(folder / "config.json")
        if not settings:
            if name.startswith("sentence_transformers."):
                raise FileNotFoundError(
                    f"there is no {folder.absolute() / 'config.json'}, which {name} in modules.json"
                    " needs"
                )
            continue
        with values_of(folder / "config.json"):
            if kind == "Pooling":
                each = settings.get("embedding_dimension") or settings["word_embedding_dimension"]
                flags = [settings[key] for key in settings if key.startswith("pooling_mode_")]
                modes = settings.get("pooling_mode", "")
                found = int(each) * (len(modes) if isinstance(modes, list) else max(1, sum(flags)))
            else:
                found = int(settings["out_features"])
    return found
