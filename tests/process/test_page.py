"""The live page and the API's page in a browser, on a pool that works, suffers and stops."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
from typing import Any

from batchpool.frontend.dashboard.broadcaster import MOST_VIEWERS
from tests.process.browser import Browser, Page, browsing
from tests.process.page_models import HTML
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until
from tests.process.web import ask

MODELS = "tests.process.page_models"
# The contrast of every text that is shown against what is behind it; WCAG wants 4.5.
LEAST_CONTRAST = """
(() => {
  const light = (color) => {
    const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map((part) => {
      const value = part / 255;
      return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if (!color.endsWith(", 0)") && color !== "transparent") return color;
    }
    return "rgb(255, 255, 255)";
  };
  let least = [100, ""];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility()) continue;
    const lights = [light(getComputedStyle(node).color), light(behind(node))].sort();
    lights.sort((a, b) => b - a);
    const contrast = (lights[0] + 0.05) / (lights[1] + 0.05);
    if (contrast < least[0]) least = [contrast, walker.currentNode.data];
  }
  return least;
})()
"""


class Callers:
    """Threads that call a model over HTTP until they are stopped. A lost connection is no fault."""

    def __init__(self, pool: Pool, model: str, threads: int = 2) -> None:
        self.answered = 0
        self._pool, self._path = pool, f"/v2/models/{model}/infer"
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._pool.port, timeout=PATIENCE_S)
        while not self._stop.is_set():
            try:
                connection.request("POST", self._path, rows(1))
                response = connection.getresponse()
                response.read()
                self.answered += response.status == 200
            except (OSError, http.client.HTTPException):
                connection.close()
                self._stop.wait(0.01)
        connection.close()

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        until(lambda: self.answered > 10, "the first answers")
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)


def rows(*values: float) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(values), 4]}
    spread = [value for value in values for _ in range(4)]
    return json.dumps({"inputs": [{**tensor, "data": spread}]}).encode()


def number(page: Page, selector: str) -> float:
    """The first number that is shown there, 0 if none is."""
    found = re.search(r"[\d.]+", page.text(selector).replace(",", ""))
    return float(found.group()) if found else 0.0


def row_of(page: Page, table: str, name: str) -> dict[str, str]:
    """{column: text} of a table's row."""
    found: dict[str, str] = page.evaluate(
        f"""(() => {{
          const rows = [...document.querySelectorAll('#{table} tbody tr')];
          const row = rows.find((row) => row.cells[0].textContent === {json.dumps(name)});
          return row ? Object.fromEntries([...row.cells].map((cell) =>
            [cell.dataset.label, cell.textContent])) : {{}};
        }})()"""
    )
    return found


def test_both_pages_in_a_browser() -> None:
    models = [
        {"import": f"{MODELS}:Touchy", "slots": 256, "attempts": 1},
        {"import": f"{MODELS}:Sentences", "slots": 64, "max_batch": 8},
        {"import": "tests.process.text_models:Words", "slots": 64},
    ]
    with browsing() as browser, serving(*models) as pool:
        pool.tracebacks_expected = True  # of the model that raises
        url = f"http://127.0.0.1:{pool.port}"
        the_page_of_the_api_has_commands_that_work(browser.open(f"{url}/docs"))
        page = browser.open(f"{url}/")
        page.show(width=1280)
        page.wait("document.title === 'ready · batchpool'")
        page.wait("document.getElementById('link').dataset.link === 'live'")
        with Callers(pool, "touchy"):
            shows_a_load(page)
            shows_an_error_as_text(pool, page)
            shows_a_killed_worker_and_the_next(pool, page)
            fits_every_screen(page)
            can_be_paused_by_keyboard(page)
            assert page.complaints == []
            says_that_too_many_look(pool, browser)
            reconnects_to_another_front_end(pool, page)
        assert pool.stop() == 0, "a viewer does not hold up the end"
        page.wait("document.getElementById('link').dataset.link === 'gone'")
        assert "pool has left" in page.text("#link")
        assert page.evaluate("document.getElementById('pool').dataset.fresh") == "no"
        contrast, text = page.evaluate(LEAST_CONTRAST)
        assert contrast >= 4.5, text  # grey, and still to be read


def shows_a_load(page: Page) -> None:
    card = "section.model:first-child"
    until(lambda: number(page, f"{card} .figure:nth-child(1) strong") > 0, "requests a second")
    until(lambda: number(page, f"{card} .plain tbody tr td:nth-child(4)") > 0, "a latency")
    assert page.text(f"{card} .plain tbody tr td:nth-child(4)").endswith(("ms", " s"))
    assert "of 256 slots" in page.text(f"{card} .panel:nth-child(3)")
    assert "503 above 90 %" in page.text(f"{card} .panel:nth-child(3)")
    page.wait(f"document.querySelectorAll('{card} .curve')[0].getAttribute('d').includes('L')")
    page.wait("document.querySelectorAll('#batches tr[data-blank=no] .c-outcome').length === 12")
    assert row_of(page, "processes", "batcher")["State"] == "running"
    assert row_of(page, "workers", "worker 0 of touchy")["Device"] == "cpu"
    until(lambda: "/s" in row_of(page, "workers", "worker 0 of touchy")["Batches"], "its rate")
    assert page.text("h1") == "batchpool"
    names = page.evaluate("[...document.querySelectorAll('section.model h2')].map(h => h.id)")
    assert names == ["model-touchy", "model-sentences", "model-words"]


def shows_an_error_as_text(pool: Pool, page: Page) -> None:
    answer = ask(pool, "/v2/models/touchy/infer", rows(-1))
    assert answer.refused == (500, "model_error")
    page.wait("document.querySelector('#errors tbody .c-text')?.textContent.includes('<img')")
    assert HTML in page.evaluate("document.querySelector('#errors .c-text:not(th)').textContent")
    page.wait(
        "[...document.querySelectorAll('.codes th')].some(c => c.textContent === 'model_error')"
    )
    strangers = "document.querySelectorAll('main img, main script, main b').length"
    assert page.evaluate(strangers) == 0
    assert page.evaluate("document.title") == "ready · batchpool"


def shows_a_killed_worker_and_the_next(pool: Pool, page: Page) -> None:
    name = "worker 0 of touchy"
    before = row_of(page, "workers", name)
    os.kill(int(before["PID"]), signal.SIGKILL)
    until(lambda: row_of(page, "workers", name)["Restarts"] == "1", "the restart")
    until(lambda: row_of(page, "workers", name)["State"] == "serving", "its return")
    after = row_of(page, "workers", name)
    assert after["Last error"] == "was killed by SIGKILL"
    assert after["PID"] != before["PID"]


def fits_every_screen(page: Page) -> None:
    grounds = set()
    for width in (360, 768, 1280):
        for dark in (False, True):
            page.show(width=width, dark=dark)
            wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert wide == [width, width], "it scrolls sideways"
            spilt = page.evaluate(
                "[...document.querySelectorAll('.panel, .card')]"
                ".filter(p => p.scrollWidth > p.clientWidth + 1).map(p => p.innerText)"
            )
            assert spilt == [], width
            contrast, text = page.evaluate(LEAST_CONTRAST)
            assert contrast >= 4.5, (text, width, dark)
            grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2, "light and dark"
    page.show(width=1280)


def can_be_paused_by_keyboard(page: Page) -> None:
    page.evaluate("document.activeElement.blur()")
    for _ in range(3):
        page.press("Tab")
    assert page.evaluate("document.activeElement.id") == "pause"
    page.press("Enter")
    assert page.text("#pause") == "Resume"
    assert page.evaluate("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
    page.press("Enter")
    assert page.text("#pause") == "Pause"


def says_that_too_many_look(pool: Pool, browser: Browser) -> None:
    viewers = []
    for number in range(MOST_VIEWERS - 1):  # and the page
        place = (f"127.0.1.{number}", 0)  # one address leaves places to others
        viewer = http.client.HTTPConnection(
            "127.0.0.1", pool.port, timeout=PATIENCE_S, source_address=place
        )
        viewer.request("GET", "/events")
        assert viewer.getresponse().status == 200
        viewers.append(viewer)
    page = browser.open(f"http://127.0.0.1:{pool.port}/")
    page.wait("document.getElementById('link').dataset.link === 'refused'")
    assert f"{MOST_VIEWERS} viewers watch this front end" in page.text("#link")
    for viewer in viewers:
        viewer.sock.shutdown(socket.SHUT_RDWR)
        viewer.close()
    page.wait("document.getElementById('link').dataset.link === 'live'")
    page.call("Page.navigate", url="about:blank")  # it leaves its place


def reconnects_to_another_front_end(pool: Pool, page: Page) -> None:
    page.evaluate(
        """window.links = [];
        new MutationObserver(() => links.push([
          document.getElementById('link').dataset.link,
          document.getElementById('link').textContent,
          document.getElementById('pool').dataset.fresh,
        ])).observe(document.getElementById('link'), {childList: true}), 1"""
    )
    (killed,) = pool.pids("frontend")
    os.kill(killed, signal.SIGKILL)
    page.wait("links.length && links[0][0] === 'stale'")
    page.wait("links.at(-1)[0] === 'live'")
    until(lambda: row_of(page, "processes", "frontend 0")["Restarts"] == "1", "the restart")
    seen: list[Any] = page.evaluate("links")
    assert "reconnecting" in seen[0][1]
    assert seen[-1][1] == "Live"


def the_page_of_the_api_has_commands_that_work(page: Page) -> None:
    page.wait("document.querySelectorAll('section').length === 7")
    text = page.text("main")
    assert "/v1/embeddings" in text
    assert '"float" or "base64" or null' in text
    assert "from openai import OpenAI" in text
    assert "/v2/models/touchy/infer" in text
    assert "FP32 [n, 4]" in text
    assert "deadline_exceeded" in text
    fits_every_screen(page)
    commands = page.evaluate(
        "[...document.querySelectorAll('pre[aria-label=\"curl command\"]')].map(p => p.textContent)"
    )
    assert page.complaints == []
    assert len(commands) == 4
    for command in commands:
        shown = command.replace("-o answer.bin", "-o -")
        told = ["sh", "-c", f"{shown} -w '\\n%{{http_code}}'"]
        run = subprocess.run(told, capture_output=True, timeout=PATIENCE_S, check=False)
        assert run.stdout.endswith(b"\n200"), (command, run.stdout, run.stderr)
        assert run.stdout.startswith(b"{")
        assert b'"error"' not in run.stdout
