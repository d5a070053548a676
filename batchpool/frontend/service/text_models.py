"""The tokenizers and chat templates of the generators that one front end serves."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import NamedTuple

from batchpool.core.errors import InternalError
from batchpool.core.tensors.spec import ModelSpec
from batchpool.core.tensors.text import Text
from batchpool.frontend.http.background import BackgroundThread
from batchpool.frontend.service.endpoint_table import EndpointTable
from batchpool.text.text_model import TextModel

_LOG = logging.getLogger("batchpool.frontend")
_NO_FLOW = 0  # of loading, which no caller asks for


class _Key(NamedTuple):
    """The parts of which a text model is made."""

    text: Text
    most_tokens: int
    least_tokens: int


class _Loaded(NamedTuple):
    """stamp: of the tokenizer's file; another one is read at the next reload."""

    stamp: tuple[int, ...]
    model: asyncio.Future[TextModel]


class TextModels:
    """One `TextModel` for each generator that has a text.

    A tokenizer is read, in the thread, when its generator is first seen, and by a reload that finds
    another one; requests wait until it is there. Generators without a text load nothing.
    """

    def __init__(self, endpoints: EndpointTable, background: BackgroundThread) -> None:
        self._endpoints = endpoints
        self._background = background
        self._loaded: dict[_Key, _Loaded] = {}
        self.learn()

    def learn(self) -> None:
        """Follow the generators that are served now."""
        specs = [each.endpoint.facts.spec for each in self._endpoints.by_model.values()]
        keys = [_key(spec) for spec in specs if spec.text is not None]
        self._loaded = {key: self._load(key) for key in keys}

    def _load(self, key: _Key) -> _Loaded:
        known, stamp = self._loaded.get(key), _stamp(key.text.tokenizer)
        if known is not None and known.stamp == stamp and not _has_failed(known.model):
            return known
        model = self._background.run(_NO_FLOW, TextModel, *key)
        model.add_done_callback(_log_failure)
        return _Loaded(stamp, model)

    async def find(self, spec: ModelSpec) -> TextModel:
        """That of a generator with a text, once it is loaded. InternalError where it cannot be."""
        loaded = self._loaded.get(_key(spec))
        if loaded is None:  # of a generator that a reload has replaced meanwhile
            loaded = self._loaded[_key(spec)] = self._load(_key(spec))
        try:
            return await asyncio.shield(loaded.model)
        except Exception as exc:
            raise InternalError(
                f"the text of model {spec.name!r} cannot be read; the server's log has the details"
            ) from exc


def _key(spec: ModelSpec) -> _Key:
    assert spec.text is not None, "a model without a text"
    (prompt,) = spec.inputs
    return _Key(spec.text, prompt.max_shape[0], prompt.min_shape[0])


def _stamp(path: str) -> tuple[int, ...]:
    try:
        facts = os.stat(path)
    except OSError:  # what reads it says why
        return ()
    return facts.st_mtime_ns, facts.st_size, facts.st_ino


def _has_failed(model: asyncio.Future[TextModel]) -> bool:
    return model.done() and (model.cancelled() or model.exception() is not None)


def _log_failure(model: asyncio.Future[TextModel]) -> None:
    if not model.cancelled() and (error := model.exception()) is not None:
        _LOG.error("the text of a generator cannot be read: %s", error)
