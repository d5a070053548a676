"""The short form of `--model` for models that need no code: `onnx:PATH`, `NAME=onnx:PATH`."""

from __future__ import annotations

import difflib
import posixpath
import re

from batchpool.core.config.import_names import IMPORT_NAME

# The word before the colon, and the class that gets what follows as its option `path`.
READY_MODELS = {
    "onnx": "batchpool.models.onnx:Onnx",
    "sentence_transformer": "batchpool.models.sentence_transformer:SentenceTransformer",
    "image_classifier": "batchpool.models.image_classifier:ImageClassifier",
    "text_classifier": "batchpool.models.text_classifier:TextClassifier",
    "causal_lm": "batchpool.models.causal_lm:CausalLM",
    "exported": "batchpool.models.exported:Exported",
}
# What `pip install 'batchpool[...]'` takes for those that need more than their framework.
_EXTRAS = {
    "sentence_transformer": "sentence-transformer",
    "image_classifier": "image-classifier",
    "text_classifier": "text-classifier",
    "causal_lm": "causal-lm,text",
}
_WORD_OF_ENDING = {
    ".onnx": "onnx",
    ".pt2": "exported",
    **dict.fromkeys((".safetensors", ".pth", ".pt"), "image_classifier"),
}
_FILE_ENDINGS = tuple(_WORD_OF_ENDING)
_NAME_CHARACTERS_MOST = 128


def ready_model(text: str) -> tuple[str, str] | None:
    """(MODULE:CLASS, path) of "onnx:PATH" and its like; None for any other text."""
    word, colon, path = text.partition(":")
    return (READY_MODELS[word], path) if colon and word in READY_MODELS else None


def extras_of(import_name: str) -> str:
    """The extras of a ready model's class MODULE:CLASS, its framework among them, as pip takes them
    in brackets; "" for one that needs no more than its framework, and for any other class."""
    words = {name: word for word, name in READY_MODELS.items()}
    return _EXTRAS.get(words.get(import_name, ""), "")


def misspelt_ready_model(text: str) -> str:
    """The end of a message about a text whose word before the colon is nearly that of a short form,
    or that is such a word or the path of a file alone; "" for any other."""
    word, colon, path = text.partition(":")
    if not colon and word in READY_MODELS:
        return f'; did you mean "{word}:PATH"?'
    if not colon and (kind := _WORD_OF_ENDING.get(posixpath.splitext(text)[1])):
        return f'; did you mean "{kind}:{text}"?'
    near = difflib.get_close_matches(word.replace("-", "_"), READY_MODELS, n=1)
    if not colon or not path or not near or word in READY_MODELS:
        return ""
    return f'; did you mean "{near[0]}:{path}"?'


def path_hint(text: str) -> str:
    """The end of a message about a path that stands alone, as of a folder; "" for any other."""
    if ":" in text or "/" not in text or text.endswith(".py"):
        return ""
    forms = ", ".join(f"{word}:PATH" for word in READY_MODELS)
    return f"; a path goes behind the word for what lies there: {forms}"


def ready_model_hint(text: str) -> str:
    """The end of a message about a short form that stands where a class is expected."""
    if ready_model(text) is None:
        return misspelt_ready_model(text)
    return "" if IMPORT_NAME.fullmatch(text) else long_form(text)


def long_form(text: str) -> str:
    """The end of a message about a short form that was looked up as a class MODULE:CLASS, which is
    how a configuration file reads it; "" for any other text."""
    found = ready_model(text)
    if found is None:
        return ""
    return f'; write {found[0]}, and path = "{found[1]}" in its [model.options]'


def name_of_file(path: str) -> str:
    """The name of a model that is made from a file or folder: its last part without a known ending,
    "_" for what cannot stand in a URL. "" where nothing is left."""
    name = posixpath.basename(posixpath.normpath(path))
    ending = next((end for end in _FILE_ENDINGS if name.endswith(end)), "")
    name = re.sub(r"[^A-Za-z0-9._-]", "_", name.removesuffix(ending))
    return name.lstrip("._-")[:_NAME_CHARACTERS_MOST]
