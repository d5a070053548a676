"""In a reload the sequences of an old worker go on in its heir, and back where it is undone."""

from __future__ import annotations

from typing import Any

from batchpool.control.process_messages import EndWorker, ReturnSequences
from tests.unit.supervisor.plan.test_generator_settings import SPEC
from tests.unit.supervisor.reload.test_worker_swap_executor import Scene, sent


class GeneratorScene(Scene):
    """Two workers of a generator, of which a reload changes a setting."""

    def __init__(self, **new: Any) -> None:
        facts = {"specs": {"a": SPEC}}
        super().__init__(facts, {**facts, "max_wait_ms": 10.0, "attempts": 2, **new})


def test_an_old_worker_returns_its_sequences_when_its_heir_has_taken_over() -> None:
    scene = GeneratorScene()
    first = scene.workers.worker_slots[0]
    assert sent(first) == []
    scene.serve()
    assert sent(first) == [ReturnSequences()]
    scene.serve()
    scene.workers.observer.idle(first)
    scene.step()
    assert sent(first) == [ReturnSequences(), EndWorker()]


def test_a_reload_that_is_undone_gives_the_sequences_back() -> None:
    scene = GeneratorScene()
    first = scene.workers.worker_slots[0]
    scene.serve()
    heir = scene.workers.worker_slots[0]
    scene.workers.end(scene.heir())
    scene.step()
    assert sent(first) == [ReturnSequences(), ReturnSequences(on=False)]
    assert sent(heir) == [ReturnSequences()]


def test_a_worker_without_an_heir_leaves_its_sequences_to_the_others() -> None:
    scene = GeneratorScene(workers_per_device=1)
    second = scene.workers.worker_slots[1]
    scene.serve()
    assert sent(second) == [ReturnSequences()]
