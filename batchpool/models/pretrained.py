"""Whole models out of folders of Hugging Face transformers.

The library fills weights that a folder lacks with random numbers and a warning. A server would then
answer every request with numbers that mean nothing. It also leaves weights on a CPU mapped to their
file: whoever writes a new file over that one, for the next reload, would change the answers of the
workers that still run, or end them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_SHOWN = 3


def whole_model(library_class: Any, folder: Path, trust: bool, **settings: Any) -> Any:
    """The model of `library_class.from_pretrained` on the CPU, with every weight from the folder.

    trust: load weights that are pickled, and code of the folder. settings: further arguments of
    from_pretrained. Raises ValueError where weights of the class are not in the folder. They may
    be mapped to their file: see `keep_weights`.
    """
    model, report = library_class.from_pretrained(
        str(folder),
        use_safetensors=None if trust else True,
        local_files_only=True,
        trust_remote_code=trust,
        output_loading_info=True,
        **settings,
    )
    _check(report["missing_keys"], folder, type(model).__name__)
    return model


@contextmanager
def whole_models(folder: Path, ignored: str) -> Iterator[None]:
    """Models that another library makes by from_pretrained within the block have every weight.

    ignored: a part of names between dots; weights with it may be missing; "" for none. Raises
    ValueError as `whole_model` does. That library does not hand the report of what was missing on,
    so the call is wrapped.
    """
    from transformers import PreTrainedModel

    its_own = PreTrainedModel.__dict__["from_pretrained"]

    def checked(cls: Any, *arguments: Any, **settings: Any) -> Any:
        wants_report = settings.pop("output_loading_info", False)
        model, report = its_own.__func__(cls, *arguments, output_loading_info=True, **settings)
        missing = [name for name in report["missing_keys"] if ignored not in name.split(".")]
        _check(missing, folder, type(model).__name__)
        return (model, report) if wants_report else model

    base: Any = PreTrainedModel
    base.from_pretrained = classmethod(checked)
    try:
        yield
    finally:
        base.from_pretrained = its_own


def keep_weights(model: Any) -> Any:
    """The model of torch with its weights in memory of its own, and not in that of a mapped file;
    those on a GPU are already."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu":
            tensor.data = tensor.data.clone()
    return model


def _check(missing: Iterable[str], folder: Path, name: str) -> None:
    if missing := sorted(missing):
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise ValueError(
            f"the folder {folder.absolute()} has no weights for {', '.join(missing[:_SHOWN])}{more}"
            f" of {name}; a folder with all of them was expected, as its"
            " save_pretrained writes it, and not that of the network without its head"
        )
