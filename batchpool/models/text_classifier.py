"""Labels of texts by a folder of a sequence classifier of Hugging Face transformers.

    pip install 'batchpool[text-classifier]'
    batchpool serve --model text_classifier:models/distilbert-sst2

    curl -s localhost:8000/v2/models/distilbert-sst2/infer -d '{"text": ["A fine film."]}'

The folder has model and tokenizer, as the library saves them. Scores are those of the pipeline
"text-classification": softmax over the labels, sigmoid where a text may have several or there is
one label, the plain value of a regression.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import batchpool as bp
from batchpool.models.extras import extra, folder_with
from batchpool.models.texts import by_length, decoded, share_cores

if TYPE_CHECKING:
    import torch

_TOKENS_MOST = 1 << 20  # a tokenizer without a limit has a larger one


class TextClassifier(bp.Model):
    """`text` [n] bytes, UTF-8 -> `label` [n] bytes, `score` [n], `scores` [n, labels] float32.

    label, score: of the best label. path: the folder. max_bytes: of a text. max_tokens: longer
    texts are cut; 0 for what the folder says. dtype: of the weights. trust: load weights that are
    pickled, and code of the folder. Raises RuntimeError without the extra, FileNotFoundError and
    OSError for another folder.
    """

    name = "text_classifier"

    def __init__(
        self,
        path: Path,
        max_bytes: int = 8192,
        max_tokens: int = 0,
        dtype: Literal["float32", "float16", "bfloat16"] = "float32",
        trust: bool = False,
    ) -> None:
        self._path = path = folder_with(path, "config.json")
        self._dtype, self._trust, self._max_tokens = dtype, trust, max_tokens
        self._config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        # As transformers has it, which does not write the two labels that are its default.
        names = self._config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
        self._labels = [str(names[key]) for key in sorted(names, key=int)]
        self._encoded = [label.encode() for label in self._labels]
        unlike = self._labels if len(set(self._labels)) == len(self._labels) else ()
        self.inputs = [bp.Tensor("text", "bytes", (), max_bytes=max_bytes)]
        self.outputs = [
            bp.Tensor("label", "bytes", (), max_bytes=max(1, *map(len, self._encoded))),
            bp.Tensor("score", "float32"),
            bp.Tensor("scores", "float32", (len(self._labels),), labels=unlike),
        ]

    def load(self, device: str) -> None:
        with extra("text-classifier"):
            import torch
            from transformers import AutoModelForSequenceClassification, AutoTokenizer
            from transformers.utils.logging import disable_progress_bar
        disable_progress_bar()
        share_cores()
        where = {"local_files_only": True, "trust_remote_code": self._trust}
        self._tokenizer: Any = AutoTokenizer.from_pretrained(str(self._path), **where)
        classifier: Any = AutoModelForSequenceClassification.from_pretrained(
            str(self._path),
            use_safetensors=None if self._trust else True,
            dtype=getattr(torch, self._dtype),
            **where,
        )
        self._classifier = classifier.to(device).eval()
        most = self._tokenizer.model_max_length
        if most > _TOKENS_MOST:
            most = self._config.get("max_position_embeddings", _TOKENS_MOST)
        self._max_tokens = min(self._max_tokens or most, most)

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        import torch

        texts = decoded(batch, "text")
        device = self._classifier.device
        scores = torch.empty((batch.n, len(self._labels)), device=device)
        for rows in by_length(texts):
            tokens = self._tokens([texts[row] for row in rows])
            moved = {key: value.to(device) for key, value in tokens.items()}
            logits = self._classifier(**moved).logits.float()
            scores[torch.from_numpy(rows).to(device)] = self._scores(logits)
        best = scores.max(dim=1)
        labels = np.array(self._encoded, object)[best.indices.cpu().numpy()]
        return {"label": labels, "score": best.values, "scores": scores}

    def _tokens(self, texts: list[str]) -> dict[str, torch.Tensor]:
        """Token ids of texts, padded to the longest, and what else the model takes."""
        found: dict[str, torch.Tensor] = self._tokenizer(
            texts, truncation=True, max_length=self._max_tokens, padding=True, return_tensors="pt"
        )
        return found

    def _scores(self, logits: torch.Tensor) -> torch.Tensor:
        kind = self._config.get("problem_type")
        if kind == "regression":
            return logits
        if kind == "multi_label_classification" or logits.shape[1] == 1:
            return logits.sigmoid()
        return logits.softmax(dim=1)
