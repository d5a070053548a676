"""Whole models out of folders of Hugging Face transformers.

The library fills weights that a folder lacks with random numbers and a warning. A server would then
answer every request with numbers that mean nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

_SHOWN = 3


def whole_model(library_class: Any, folder: Path, trust: bool, **settings: Any) -> Any:
    """The model of `library_class.from_pretrained` on the CPU, with every weight from the folder.

    trust: load weights that are pickled, and code of the folder. settings: further arguments of
    from_pretrained. Raises ValueError where weights of the class are not in the folder.
    """
    model, report = library_class.from_pretrained(
        str(folder),
        use_safetensors=None if trust else True,
        local_files_only=True,
        trust_remote_code=trust,
        output_loading_info=True,
        **settings,
    )
    if missing := sorted(report["missing_keys"]):
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise ValueError(
            f"the folder {folder.absolute()} has no weights for {', '.join(missing[:_SHOWN])}{more}"
            f" of {type(model).__name__}; a folder with all of them was expected, as its"
            " save_pretrained writes it, and not that of the network without its head"
        )
    return model
