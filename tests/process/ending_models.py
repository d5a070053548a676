"""Models for the tests of the workers' end, and of what models do to `logging`."""

from __future__ import annotations

import atexit
import logging
import logging.config
import os
import threading
import time
from typing import Any

import batchpool as bp
from tests.process.models import Numpy, Probe, note

HOW = "BATCHPOOL_TEST_END"  # environment: what the model does when its worker ends
ROWS = 500


def append(name: str, text: str) -> None:
    """Add a line to a note, at once."""
    with note(name).open("a") as file:
        file.write(f"{text}\n")


def wait_for(name: str) -> None:
    """Wait until the test, or another worker, leaves this note."""
    while not note(name).exists():
        time.sleep(0.002)


class Ending(Probe):
    """A Probe that prints, keeps a file open that nobody closes or flushes, and is unloaded.

    It leaves the notes "unloads" and "exits", with a line of its pid for each time, and
    "rows-PID", the file. how: what it does when its worker ends; by default as HOW says.
    """

    def __init__(self, how: str = "") -> None:
        self.how = how or os.environ.get(HOW, "")

    def load(self, device: str) -> None:
        super().load(device)
        print("load")
        self.rows = note(f"rows-{os.getpid()}").open("w")
        atexit.register(self.at_exit)
        if self.how == "thread":
            threading.Thread(target=wait_for, args=("never",)).start()

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        found = super().infer(batch)
        for tag in batch["tag"].tolist():
            if tag:
                print(f"infer {tag}")
                self.rows.write(f"{tag}\n" * ROWS)
        return found

    def unload(self) -> None:
        append("unloads", str(os.getpid()))
        print("unload")
        match self.how:
            case "unload":
                wait_for("never")
            case "raises":
                raise RuntimeError("nothing to put away")
            case "exits":
                raise SystemExit(9)
            case "dies":
                os._exit(7)
            case "together":  # each of two waits for the other
                note(f"unloading-{os.getpid()}").touch()
                while len([*note("").glob("unloading-*")]) < 2:
                    time.sleep(0.002)
            case "gate":
                wait_for("gate")

    def at_exit(self) -> None:
        append("exits", str(os.getpid()))
        print("at exit")
        if self.how == "atexit":
            wait_for("never")


class Unwarm(Numpy):
    """Loads, and fails in its warm-up."""

    inputs = [bp.Tensor("x", "float32", (4,))]
    outputs = [bp.Tensor("y", "float32", (4,))]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        raise ValueError("not even this one")

    def unload(self) -> None:
        append("unloads", "unwarm")


class Unloadable(Unwarm):
    """Does not even load."""

    def load(self, device: str) -> None:
        raise FileNotFoundError("no weights")


class AfterAnother(Unwarm):
    """Fails once an `Ending` is warm beside it."""

    def load(self, device: str) -> None:
        wait_for("gate")


class Silencer(Probe):
    """Configures the module `logging` for itself alone: no other logger is to be heard."""

    def load(self, device: str) -> None:
        super().load(device)
        logging.config.dictConfig(
            {
                "version": 1,
                "disable_existing_loggers": True,
                "formatters": {"plain": {"format": "SILENCER %(message)s"}},
                "handlers": {
                    "out": {
                        "class": "logging.StreamHandler",
                        "stream": "ext://sys.stdout",
                        "formatter": "plain",
                    }
                },
                "root": {"level": "INFO", "handlers": ["out"]},
            }
        )
        logging.getLogger("silencer").info("loaded")

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        if batch["tag"].any():
            logging.getLogger("silencer").info("infer")
            logging.disable(logging.CRITICAL)
            raise ValueError("this row is bad")
        return super().infer(batch)

    def unload(self) -> None:
        logging.shutdown()
        raise RuntimeError("nothing to put away")
