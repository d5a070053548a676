"""Texts across reloads: another lane, and another tokenizer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from batchpool.control.messages import PlanChanged
from batchpool.core.layout.states import LaneGate
from tests.lazy import library
from tests.unit.frontend.frontend_double import edge
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.text_story import tale
from tests.unit.text.tokenizers_made import byte_fallback, saved

library("tokenizers")

URL = "/v1/completions"


def request(prompt: Any) -> dict[str, Any]:
    return {"model": "tale", "prompt": prompt, "max_tokens": 2}


@on_loop
async def test_a_prompt_goes_to_the_tokenizer_that_a_reload_brought(tmp_path: Path) -> None:
    """The front end hears of the reload when the old lane's gate says so."""
    other = tmp_path / "other"
    other.mkdir()
    model = tale(other, tokenizer=saved(byte_fallback(), other))
    async with edge(tale(tmp_path)) as it:
        old = it.pool.lane_client("tale")
        hear = it.pool.move("tale", model)
        old.lane.gate.set(LaneGate.MOVED)

        def learn(message: Any, fds: Any) -> None:
            hear()
            it.view.learn()

        it.client_loop._heard = learn
        it.pool.session.theirs.send(PlanChanged((), {}, 1, ()))
        answer = (await it.http.post(URL, json=request("dog"))).json()
        made = byte_fallback()
        prompt = made.encode("dog").ids
        assert answer["usage"]["prompt_tokens"] == len(prompt)
        follow = [prompt[0] + 1, prompt[0] + 2]
        assert answer["choices"][0]["text"] == made.decode(follow)
        assert it.pool.lane_client("tale") is not old


@on_loop
async def test_prompts_that_wait_go_on_in_the_lane_that_a_reload_brings(tmp_path: Path) -> None:
    async with edge(tale(tmp_path), slots=4) as it:
        it.pool.hold = True
        old, story = it.pool.lane_client("tale"), it.pool.stories["tale"]
        prompts = ["a", "b", "c", "d", "e", "f"]
        asked = asyncio.create_task(it.http.post(URL, json=request(prompts)))
        await until(lambda: len(story.running) >= 3, "some run")
        hear = it.pool.move("tale", tale(tmp_path))
        old.lane.gate.set(LaneGate.MOVED)
        hear()
        it.view.learn()
        it.pool.release()
        while story.running:  # the worker that was replaced finishes its own
            story.step()
            await asyncio.sleep(0)
        answer = (await asked).json()
        texts = [choice["text"] for choice in answer["choices"]]
        assert texts == ["bc", "cd", "de", "ef", "fg", "gh"]
        assert it.pool.lane_client("tale").allocator.claimed == 0
