"""A headless Chromium, driven over the DevTools protocol through a pair of pipes.

    with browsing() as browser:
        page = browser.open("http://127.0.0.1:8000/")
        page.wait("document.title.startsWith('ready')")

What pages write to their console as an error, exceptions and violations of the content security
policy among it, is kept in `page.complaints`. https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE_S = 150.0
POLL_S = 0.02
# A browser that listens expects its pipes at the descriptors 3 and 4.
_PLACE_PIPES = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def browser_path() -> str | None:
    """Where a Chromium is installed, if one is."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.complaints: list[str] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, params, self._session)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression: str, timeout_s: float = PATIENCE_S) -> Any:
        """Wait until an expression is true, and return its value."""
        give_up = time.monotonic() + timeout_s
        while not (found := self.evaluate(expression)):
            if time.monotonic() > give_up:
                text = self.evaluate("document.body.innerText")
                raise AssertionError(f"never true: {expression}\n{self.complaints}\n{text}")
            time.sleep(POLL_S)
        return found

    def text(self, selector: str) -> str:
        """The visible text of an element."""
        found: str = self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    def show(self, *, width: int, height: int = 800, dark: bool = False, scale: float = 1) -> None:
        """The size of the window in CSS pixels, and the colours its user prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key: str) -> None:
        """A key, as "Tab" or "Enter"."""
        codes = {"Tab": 9, "Enter": 13}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **text,
            )  # fmt: skip

    def picture(self, *, whole: bool = False) -> bytes:
        """A PNG of what the window shows, or of the whole page."""
        self.call("Page.bringToFront")  # a tab behind another draws nothing
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])

    def heard(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")


class Browser:
    """A running Chromium. Use `browsing`."""

    def __init__(self, write_fd: int, read_fd: int) -> None:
        self._write_fd = write_fd
        self._read_fd = read_fd
        self._numbers = itertools.count(1)
        self._pages: dict[str, Page] = {}
        self._rest = b""

    def open(self, url: str) -> Page:
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        page = self._pages[attached["sessionId"]] = Page(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.call("Page.navigate", url=url)
        page.wait("location.protocol !== 'about:' && document.readyState === 'complete'")
        return page

    def call(
        self, method: str, params: Mapping[str, Any], session: str | None = None
    ) -> dict[str, Any]:
        """One command and its answer; events that come meanwhile go to their pages."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._write_fd, json.dumps(message).encode() + b"\0")
        give_up = time.monotonic() + PATIENCE_S
        while True:
            heard = self._next(give_up)
            if heard.get("id") == number:
                assert "error" not in heard, (method, heard["error"])
                answer: dict[str, Any] = heard["result"]
                return answer
            page = self._pages.get(heard.get("sessionId", ""))
            if page is not None and "method" in heard:
                page.heard(heard["method"], heard["params"])

    def _next(self, give_up: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read_fd], [], [], give_up - time.monotonic())
            piece = os.read(self._read_fd, 1 << 20) if ready else b""
            assert piece, "the browser says nothing more"
            self._rest += piece
        raw, _, self._rest = self._rest.partition(b"\0")
        heard: dict[str, Any] = json.loads(raw)
        return heard


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser of its own, with an empty profile; the test is skipped where none is installed."""
    path = browser_path()
    if path is None:
        assert "CI" not in os.environ, "CI must have a Chromium: see .ci/run"
        pytest.skip("no Chromium is installed")
    their_read, our_write = os.pipe()
    our_read, their_write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="bp-browser-", ignore_cleanup_errors=True) as profile:
        place = [sys.executable, "-c", _PLACE_PIPES, str(their_read), str(their_write)]
        process = subprocess.Popen(
            [*place, path, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(their_read, their_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for fd in (their_read, their_write):
            os.close(fd)
        browser = Browser(our_write, our_read)
        try:
            yield browser
            browser.call("Browser.close", {})
            process.wait(PATIENCE_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            for fd in (our_write, our_read):
                os.close(fd)
