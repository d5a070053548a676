"""Labels of texts by a folder of a sequence classifier of Hugging Face transformers.

    pip install 'batchpool[text-classifier]'
    batchpool serve --model text_classifier:models/distilbert-sst2

    curl -s localhost:8000/v2/models/distilbert-sst2/infer -d '{"text": ["A fine film."]}'

The folder has model and tokenizer, as the library saves them. Scores are those of the pipeline
"text-classification": softmax over the labels, sigmoid where a text may have several or there is
one label, the plain value of a regression.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import batchpool as bp
from batchpool.models.bounds import AtLeastOne, AtLeastZero
from batchpool.models.extras import (
    check_attention,
    check_tokenizer,
    check_weights,
    extra,
    folder_with,
)
from batchpool.models.files.json_files import json_object, values_of
from batchpool.models.long_texts import TRUNCATED, refuse_long, whole_lengths
from batchpool.models.pretrained import keep_weights, whole_model
from batchpool.models.texts import decoded, share_cores
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


class TextClassifier(bp.Model):
    """`text` [n] bytes, UTF-8 -> `label` [n] bytes, `score` [n], `scores` [n, labels] float32,
    `truncated` [n] bool.

    label, score: of the best label. path: the folder. max_bytes: of a text. max_tokens: of a text,
    its marks among them; 0 for what the folder says. truncate: longer texts are cut, which the
    output `truncated` tells; False refuses them, and there is no such output. dtype: of the
    weights; "auto" is half precision on a GPU. trust: load weights that are pickled, and code of
    the folder. Raises RuntimeError without the extra, FileNotFoundError, OSError and ValueError for
    another folder.
    """

    name = "text_classifier"

    def __init__(
        self,
        path: Path,
        max_bytes: AtLeastOne = 8192,
        max_tokens: AtLeastZero = 0,
        truncate: bool = True,
        dtype: Dtype = "auto",
        trust: bool = False,
    ) -> None:
        self._path = path = folder_with(path, "config.json")
        check_weights(path, trust)
        check_attention(path, trust)
        check_tokenizer(path, trust)
        self._dtype, self._trust, self._truncate = dtype, trust, truncate
        self._config = json_object(path / "config.json")
        # As transformers has it, which does not write the two labels that are its default.
        names = self._config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
        with values_of(path / "config.json"):
            self._labels = [str(names[key]) for key in sorted(names, key=int)]
        self._encoded = [label.encode() for label in self._labels]
        unlike = self._labels if len(set(self._labels)) == len(self._labels) else ()
        self.inputs = [bp.Tensor("text", "bytes", (), max_bytes=max_bytes)]
        most = token_limit(path, self._config, max_bytes)
        self._max_tokens = min(max_tokens or most, most)
        self.features = token_features(self._max_tokens, truncate=truncate)
        self.outputs = [
            bp.Tensor("label", "bytes", (), max_bytes=max(1, *map(len, self._encoded))),
            bp.Tensor("score", "float32"),
            bp.Tensor("scores", "float32", (len(self._labels),), labels=unlike),
            *([bp.Tensor(TRUNCATED, "bool")] if truncate else []),
        ]

    def load_preprocess(self) -> None:
        share_cores()
        self._tokenizer = self._loaded_tokenizer()

    def preprocess(self, batch: bp.Batch) -> dict[str, Any]:
        texts = decoded(batch, "text")
        found = self._tokenizer(texts, truncation=True, max_length=self._max_tokens)
        lengths = [len(ids) for ids in found["input_ids"]]
        wholes = whole_lengths(
            found,
            lengths,
            self._max_tokens,
            lambda at: len(self._tokenizer(texts[at], verbose=False)["input_ids"]),
        )
        features = features_of(found["input_ids"], found.get("token_type_ids"))
        if self._truncate:
            return {**features, TRUNCATED: np.greater(wholes, lengths)}
        refuse_long(batch, wholes, lengths)
        return features

    def load(self, device: str) -> None:
        with extra("text-classifier"):
            import torch
            from transformers import AutoModelForSequenceClassification
            from transformers.utils.logging import disable_progress_bar
        check_weights(self._path, self._trust)
        disable_progress_bar()
        self._tokenizer = self._loaded_tokenizer()
        classifier = whole_model(
            AutoModelForSequenceClassification,
            self._path,
            self._trust,
            dtype=getattr(torch, dtype_on(device, self._dtype, self._config)),
        )
        self._classifier = keep_weights(classifier.to(device).eval())

    def _loaded_tokenizer(self) -> Any:
        with extra("text-classifier"):
            from transformers import AutoTokenizer
        return AutoTokenizer.from_pretrained(
            str(self._path), local_files_only=True, trust_remote_code=self._trust
        )

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        names = [name for name in MADE if name in self._tokenizer.model_input_names]
        tokens = token_inputs(batch, self._tokenizer, names)
        scores = self._scores(self._classifier(**tokens).logits.float())
        best = scores.max(dim=1)
        labels = np.array(self._encoded, object)[best.indices.cpu().numpy()]
        found = {"label": labels, "score": best.values, "scores": scores}
        return {**found, TRUNCATED: batch[TRUNCATED]} if self._truncate else found

    def _scores(self, logits: torch.Tensor) -> torch.Tensor:
        kind = self._config.get("problem_type")
        if kind == "regression":
            return logits
        if kind == "multi_label_classification" or logits.shape[1] == 1:
            return logits.sigmoid()
        return logits.softmax(dim=1)
