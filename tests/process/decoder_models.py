"""A decoder of transformers whose first worker dies in mid-run."""

from __future__ import annotations

import os
import signal

import batchpool as bp
from batchpool.models.causal_lm import CausalLM
from tests.process.models import note

TOGETHER = 6  # so many sequences in one step
STEPS = 9


class MortalLM(CausalLM):
    """After some steps of several sequences it kills its worker, the first time in a pool; the
    tokens of the last of these steps are lost."""

    steps = 0

    def step(self) -> bp.StepTokens:
        made = super().step()
        self.steps += len(made.numbers) >= TOGETHER
        died = note("died")
        if self.steps >= STEPS and not died.exists():
            died.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return made
