"""Facts of a folder of a decoder of transformers, read from its JSON files alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchpool.models.files.json_files import json_object, values_of

_USUAL_LENGTH = 2048  # tokens of a sequence, where the option leaves it open
# As the models' configurations call it.
_LENGTH_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
_ONE_BY_ONE = ("full_attention",)  # kinds of layers that look at all tokens before


@dataclass(frozen=True)
class ModelFolder:
    """The facts that the files of a folder tell.

    config: config.json, that of the text model where it has several. generation:
    generation_config.json, {} where there is none. tokenizer: path of the tokenizer.json, "" where
    there is none. chat_template: "" for none.
    """

    path: Path
    config: dict[str, Any] = field(repr=False)
    generation: dict[str, Any] = field(repr=False)
    tokenizer: str
    chat_template: str = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> ModelFolder:
        """The facts of a folder. Raises OSError and ValueError for files that cannot be read."""
        config = json_object(path / "config.json")
        if not config.get("model_type"):
            raise ValueError(
                f"{path.absolute() / 'config.json'} names no model_type, so that this is no model"
                " of transformers"
            )
        tokenizer = path / "tokenizer.json"
        with values_of(path / "config.json"):
            config = {**config, **config.get("text_config", {})}
        return cls(
            path,
            config,
            json_object(path / "generation_config.json"),
            str(tokenizer.absolute()) if tokenizer.is_file() else "",
            _chat_template(path),
        )

    def check(self, length: int) -> None:
        """Raise ValueError for a model that cannot be run in slots of so many tokens, with the
        reason."""
        kind = self.config.get("model_type", "unknown")
        if self.config.get("is_encoder_decoder"):
            raise _refusal(self, kind, "it is an encoder-decoder; decoders alone are served")
        window = self._window()
        if window is not None and window < length:
            raise _refusal(
                self, kind,
                f"its layers look back {window} tokens at most (sliding window), but a sequence may"
                f" have {length}; set the option max_length to {window} or less",
            )  # fmt: skip
        layers = set(self.config.get("layer_types") or _ONE_BY_ONE)
        if other := sorted(layers - {*_ONE_BY_ONE, "sliding_attention"}):
            raise _refusal(
                self, kind,
                f"it has layers of {', '.join(other)}; layers that keep keys and values of all"
                " tokens are served",
            )  # fmt: skip

    def _window(self) -> int | None:
        """The tokens that the layer with the shortest sight looks back, None for all."""
        layers = self.config.get("layer_types")
        if self.config.get("use_sliding_window") is False:
            return None
        if layers is not None and "sliding_attention" not in layers:
            return None
        window = self.config.get("sliding_window")
        return window if isinstance(window, int) else None

    def checked_length(self, wanted: int) -> int:
        """The most tokens of a sequence: as wanted, or for 0 as many as the model takes, at most
        2,048. Raises ValueError for more than it takes."""
        with values_of(self.path / "config.json"):
            told = (int(self.config[key]) for key in _LENGTH_KEYS if self.config.get(key))
            most = next(told, None)
        if wanted < 0 or wanted == 1:
            raise ValueError(f"option max_length is {wanted}; 2 or more tokens were expected")
        if not wanted:
            return _USUAL_LENGTH if most is None else min(most, _USUAL_LENGTH)
        if most is not None and wanted > most:
            raise ValueError(
                f"option max_length is {wanted}, but the model in {self.path} takes {most} tokens"
            )
        return wanted

    def stop_ids(self, more: Iterable[int]) -> frozenset[int]:
        """The tokens that end a sequence: those of the end in the generation configuration, else in
        the model's, and `more`."""
        end = self.generation.get("eos_token_id", self.config.get("eos_token_id"))
        return frozenset([*([] if end is None else end if isinstance(end, list) else [end]), *more])

    def sampling_defaults(self) -> tuple[float, int, float]:
        """Temperature, top-k and top-p where a request says none: those of the generation
        configuration if it samples, as for the library itself; else the likeliest token."""
        if not self.generation.get("do_sample"):
            return 0.0, 0, 1.0
        found = (self.generation.get(key) for key in ("temperature", "top_k", "top_p"))
        temperature, top_k, top_p = found
        with values_of(self.path / "generation_config.json"):
            # The library's own defaults.
            return (
                1.0 if temperature is None else float(temperature),
                50 if top_k is None else int(top_k),
                1.0 if top_p is None else float(top_p),
            )


def _refusal(folder: ModelFolder, kind: str, reason: str) -> ValueError:
    return ValueError(f"the model in {folder.path} ({kind}) cannot be served: {reason}")


def _chat_template(path: Path) -> str:
    """The chat template of a folder: a file of its own, or in the tokenizer's configuration, where
    the one called "default" counts among several."""
    if (file := path / "chat_template.jinja").is_file():
        return file.read_text(encoding="utf-8")
    found = json_object(path / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        with values_of(path / "tokenizer_config.json"):
            found = next((each["template"] for each in found if each["name"] == "default"), None)
    return found or ""
