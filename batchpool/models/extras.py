"""Errors of ready models before they are loaded: a missing package, a missing file, no trust."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from batchpool.models.files.json_files import check_no_lfs_pointer, json_object
from batchpool.models.files.weight_files import check_safetensors

# A tokenizer is a tokenizer.json, or one of the files that slow ones have.
_TOKENIZER_FILES = ("tokenizer.json", "vocab*", "*.model", "*.spm", "*.codes", "tekken.json")
_WITHOUT_VOCABULARY = ("ByT5", "Canine", "Perceiver")  # tokenizers whose tokens are bytes

_ONE_BUILD = (
    "torch and torchvision must be of one build, both for the CPU or both for the same CUDA:"
    " install both from one index, as pip install --force-reinstall torch torchvision --index-url"
    " https://download.pytorch.org/whl/cpu"
)


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Imports within the block need an extra of batchpool: RuntimeError tells how to install it, or
    why what is installed cannot be imported."""
    try:
        yield
    except Exception as error:
        # transformers raises a ModuleNotFoundError without a name for any error of an import.
        if isinstance(error, ModuleNotFoundError) and error.name:
            raise RuntimeError(
                f"this model needs the package {error.name}, which is not installed:"
                f" pip install 'batchpool[{name}]'"
            ) from error
        raise RuntimeError(_import_failed(name, _first_cause(error))) from error


def _first_cause(error: BaseException) -> BaseException:
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


def _import_failed(extra_name: str, cause: BaseException) -> str:
    """The text for packages of an extra that are there and cannot be imported."""
    text = (
        f"the packages of batchpool[{extra_name}] are installed, but cannot be imported:"
        f" {type(cause).__name__}: {cause}"
    )
    if "torchvision" in text.partition(":")[2]:
        text += f"; {_ONE_BUILD}"
    return text


def file_at(path: Path) -> Path:
    """The path of a file that is there, "~" expanded; FileNotFoundError names it in full, and
    ValueError one that is a pointer of Git LFS."""
    path = path.expanduser()
    if path.is_dir():
        raise FileNotFoundError(f"{path.absolute()} is a folder; option path takes a file")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path.absolute()}, which option path names")
    check_no_lfs_pointer(path)
    return path


def lines_of(path: Path, option: str) -> list[str]:
    """The lines of a file of UTF-8, "~" expanded. Raises FileNotFoundError and ValueError with the
    name of the option."""
    path = path.expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {path.absolute()}, which option {option} names; a path counts from"
            " the directory in which the pool was started"
        )
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path.absolute()}, which option {option} names, is no UTF-8 at byte {error.start}"
        ) from None


def folder_with(path: Path, name: str, advice: str = "") -> Path:
    """The path of a folder with this file, "~" expanded; FileNotFoundError says what is missing.
    advice: what to do about a folder without the file."""
    path = path.expanduser()
    if path.is_file():
        raise FileNotFoundError(
            f"{path.absolute()} is a file; option path takes the folder that has {name}"
        )
    if not path.is_dir():
        raise FileNotFoundError(
            f"there is no folder {path.absolute()}, which option path names; it must be on this"
            " machine, since nothing is fetched from a hub"
        )
    if not (path / name).is_file():
        raise FileNotFoundError(
            f"there is no {name} in the folder {path.absolute()}, which option path names{advice}"
        )
    return path


def check_weights(folder: Path, trust: bool) -> None:
    """Raise FileNotFoundError for a folder of transformers without weights that may be loaded.
    trust: pickled ones may be, too. Of weights in several files, all that their index names have
    to be there; ValueError for one of
    them that is not whole."""
    for index in folder.glob("*.safetensors.index.json"):
        _check_index(index)
    if files := sorted(folder.glob("*.safetensors")):
        for file in files:
            check_safetensors(file)
        return
    pickled = next(folder.glob("*.bin"), None)
    if pickled is None:
        raise FileNotFoundError(
            f"there are no weights in the folder {folder.absolute()}: model.safetensors was"
            " expected beside its config.json"
        )
    if trust:
        return
    raise FileNotFoundError(
        f"the weights in the folder {folder.absolute()} are no safetensors: {pickled.name} is"
        " pickled, and can hold code that runs as it is loaded; if you know where it comes from,"
        " set the option trust = true"
    )


def _check_index(index: Path) -> None:
    """Raise FileNotFoundError for an index of weights that names a file which is not there."""
    try:
        named = sorted(set(json_object(index)["weight_map"].values()))
        missing = [name for name in named if not (index.parent / name).is_file()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index.absolute()} cannot be read: {error!r}") from None
    if missing:
        raise FileNotFoundError(
            f"there is no {missing[0]} in the folder {index.parent.absolute()}, one of"
            f" {len(named)} files of weights that its {index.name} names; {len(missing)} are"
            " missing"
        )


def check_tokenizer(folder: Path, trust: bool) -> None:
    """Raise FileNotFoundError for a folder of transformers without a tokenizer. trust: its code may
    make one of anything."""
    if trust or any(any(folder.glob(names)) for names in _TOKENIZER_FILES):
        return
    kind = str(json_object(folder / "tokenizer_config.json").get("tokenizer_class"))
    if not any(each in kind for each in _WITHOUT_VOCABULARY):
        raise FileNotFoundError(
            f"there is no tokenizer in the folder {folder.absolute()}: tokenizer.json was expected"
            " beside its config.json"
        )


def check_attention(folder: Path, trust: bool) -> None:
    """Raise ValueError for a folder of transformers that names a repository of a hub for its
    attention: the library fetches compiled code from there, and runs it."""
    for name in ("config.json", "sentence_bert_config.json"):
        for kernel in _attention_in(json_object(folder / name)):
            if "/" in kernel:
                what = f"attention from {kernel!r}, a repository that {(folder / name).absolute()}"
                check_trust(trust, f"{what} names,")


def _attention_in(value: Any) -> Iterator[str]:
    """The names of attention in a configuration, and in those of its parts."""
    if not isinstance(value, dict):
        return
    for key, each in value.items():
        if not key.endswith("attn_implementation"):
            yield from _attention_in(each)
        elif isinstance(each, dict):  # one for each part
            yield from map(str, each.values())
        else:
            yield str(each)


def check_trust(trust: bool, what: str) -> None:
    """Raise ValueError unless the option `trust` is set. what: may run code, in words."""
    if not trust:
        raise ValueError(
            f"{what} can hold code that runs as it is loaded; if you know where it comes from, set"
            " the option trust = true"
        )
