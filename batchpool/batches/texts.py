"""The tokenizers and chat templates of the generators that batches ask."""

from __future__ import annotations

import asyncio
import logging
import os

from batchpool.core.errors import InternalError
from batchpool.core.tensors.spec import ModelSpec
from batchpool.text.text_model import TextModel

_LOG = logging.getLogger("batchpool.tasks")
_MOST = 16  # kept at the same time; the oldest is read again when it is needed

_Key = tuple[object, ...]


class BatchTexts:
    """One `TextModel` for each generator with a text, read in a thread when it is first needed, and
    again when its tokenizer's file has changed."""

    def __init__(self) -> None:
        self._loaded: dict[_Key, TextModel] = {}
        self._loading = asyncio.Lock()

    async def find(self, spec: ModelSpec) -> TextModel:
        """That of a generator with a text. InternalError where it cannot be read."""
        text = spec.text
        assert text is not None, "a model without a text"
        most_tokens, least_tokens = spec.inputs[0].max_shape[0], spec.inputs[0].min_shape[0]
        key = (text, most_tokens, least_tokens, *_stamp(text.tokenizer))
        async with self._loading:
            if key not in self._loaded:
                try:
                    found = await asyncio.to_thread(TextModel, text, most_tokens, least_tokens)
                except Exception as exc:
                    _LOG.error("the text of a generator cannot be read: %s", exc)
                    raise InternalError(
                        f"the text of model {spec.name!r} cannot be read; the server's log has the"
                        " details"
                    ) from exc
                while len(self._loaded) >= _MOST:
                    del self._loaded[next(iter(self._loaded))]
                self._loaded[key] = found
            return self._loaded[key]


def _stamp(path: str) -> tuple[int, ...]:
    try:
        facts = os.stat(path)
    except OSError:  # what reads it says why
        return ()
    return facts.st_mtime_ns, facts.st_size, facts.st_ino
