"""The operator's command for dead letters: at most one runs, and one starts a minute."""

from __future__ import annotations

import asyncio
import logging
import shlex
import shutil
from collections.abc import Callable

import msgspec

_LOG = logging.getLogger("batchpool.tasks")
_BETWEEN_S = 60.0
_LIMIT_S = 30.0
_AT_END_S = 5.0  # a stop of the pool waits no longer for the command


def missing_program(command: str) -> str:
    """Why a task_alert_command cannot be started, as far as can be seen now; "" where it can."""
    words = shlex.split(command)
    if not words or shutil.which(words[0]) is not None:
        return ""
    return f"task_alert_command: there is no program {words[0]} that this user may start"


class Alerts:
    """Starts `task_alert_command`, which gets one JSON object on its input. command: "" for none.

    What happens between two starts is told with the next one. A failure is logged and changes
    nothing. clock_s: monotonic.
    """

    def __init__(self, command: str, clock_s: Callable[[], float]) -> None:
        self._command = shlex.split(command)
        if missing := missing_program(command):
            _LOG.warning("%s; dead letters will be told to nobody", missing)
        self._clock_s = clock_s
        self._new: dict[str, dict[str, int]] = {}
        self._next_s = 0.0
        self._running: asyncio.Task[None] | None = None

    def letter(self, model: str, code: str) -> None:
        """A task became a dead letter."""
        if self._command:
            of_model = self._new.setdefault(model, {})
            of_model[code] = of_model.get(code, 0) + 1

    def look(self) -> None:
        """Start the command, if there is something to tell and it is time."""
        if not self._new or self._clock_s() < self._next_s or self._running is not None:
            return
        self._next_s = self._clock_s() + _BETWEEN_S
        told, self._new = self._new, {}
        letters = sum(n for codes in told.values() for n in codes.values())
        message = {"event": "dead_letters", "count": letters, "models": told}
        self._running = asyncio.create_task(self._run(msgspec.json.encode(message) + b"\n"))

    async def end(self) -> None:
        """Tell at the end of the process what has not been told, however short ago the last start
        was: the next process knows nothing of it."""
        if await self._has_ended():
            self._next_s = self._clock_s()
            self.look()
            await self._has_ended()
        elif self._new:
            _LOG.warning("the latest dead letters are told to nobody: the command is not over")

    async def _has_ended(self) -> bool:
        """True once no command runs; False where one does that was waited for."""
        if self._running is None:
            return True
        _, running = await asyncio.wait({self._running}, timeout=_AT_END_S)
        if running:
            _LOG.warning("task_alert_command still runs %g s after the stop", _AT_END_S)
        return not running

    async def _run(self, message: bytes) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                async with asyncio.timeout(_LIMIT_S):
                    await process.communicate(message)
            except TimeoutError:
                process.kill()
                await process.wait()
                _LOG.error("task_alert_command did not end within %g s", _LIMIT_S)
            else:
                if process.returncode:
                    _LOG.error("task_alert_command ended with status %d", process.returncode)
        except OSError as exc:
            _LOG.error("task_alert_command cannot be started: %s", exc)
        finally:
            self._running = None
