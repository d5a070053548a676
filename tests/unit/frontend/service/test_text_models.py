"""Tokenizers of front ends: read once, in the thread, and again where a reload finds another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batchpool.core.errors import InternalError
from batchpool.core.tensors.spec import ModelSpec
from tests.lazy import library
from tests.unit.frontend.frontend_double import Edge, edge
from tests.unit.frontend.loops import on_loop
from tests.unit.frontend.models import Affine
from tests.unit.frontend.story_double import Story
from tests.unit.frontend.text_story import tale
from tests.unit.text.tokenizers_made import byte_fallback, byte_level, saved

library("tokenizers")


def spec_of(it: Edge, name: str = "tale") -> ModelSpec:
    return it.pool.session.models[name].spec


@on_loop
async def test_a_text_is_read_once_and_again_when_its_file_is_another(tmp_path: Path) -> None:
    async with edge(tale(tmp_path)) as it:
        texts = it.view.texts
        first = await texts.find(spec_of(it))
        it.view.learn()
        assert await texts.find(spec_of(it)) is first
        saved(byte_fallback(), tmp_path)
        assert await texts.find(spec_of(it)) is first
        it.view.learn()
        second = await texts.find(spec_of(it))
        assert second.tokenizer.size != first.tokenizer.size


@on_loop
async def test_a_text_that_could_not_be_read_is_tried_again_by_a_reload(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    async with edge(tale(tmp_path, tokenizer=path)) as it:
        with pytest.raises(InternalError, match="the text of model 'tale' cannot be read"):
            await it.view.texts.find(spec_of(it))
        it.view.learn()
        with pytest.raises(InternalError):
            await it.view.texts.find(spec_of(it))
        saved(byte_level(), tmp_path)
        it.view.learn()
        assert (await it.view.texts.find(spec_of(it))).has_chats


@on_loop
async def test_models_without_a_text_read_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with edge(Affine, Story) as it:

        def run(*arguments: Any) -> None:
            raise AssertionError("something is read")

        monkeypatch.setattr(it.view.background, "run", run)
        it.view.learn()


@on_loop
async def test_the_text_of_a_generator_that_was_replaced_is_still_found(tmp_path: Path) -> None:
    async with edge(tale(tmp_path), Affine) as it:
        spec = spec_of(it)
        hear = it.pool.move("tale", None)
        hear()
        it.view.learn()
        assert (await it.view.texts.find(spec)).has_chats


def test_a_front_end_imports_no_library_of_texts_by_itself() -> None:
    code = (
        "import sys, batchpool.frontend.process\n"
        "print([name for name in ('tokenizers', 'jinja2') if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "[]"
