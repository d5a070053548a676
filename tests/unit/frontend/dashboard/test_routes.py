"""The page's files and documents over HTTP, and a front end without a page."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from openapi_spec_validator import validate

from batchpool.frontend.dashboard.assets import names
from tests.unit.frontend.frontend_double import edge
from tests.unit.frontend.loops import on_loop
from tests.unit.frontend.models import Affine, Two

ROOT = Path(__file__).parents[4]
FILES = ROOT / "batchpool" / "frontend" / "dashboard"
BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


def test_every_file_that_is_no_python_is_served() -> None:
    here = {f.name for f in FILES.iterdir() if f.is_file() and f.suffix != ".py"}
    assert set(names()) == here
    assert {"index.html", "docs.html", "page.css", "page.js"} <= here


@on_loop
async def test_browsers_get_the_page_and_programs_the_object() -> None:
    async with edge(Affine) as it:
        page = await it.http.get("/", headers=BROWSER)
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.content == (FILES / "index.html").read_bytes()
        found = await it.http.get("/")
        assert found.json()["models"] == ["/v2/models/affine"]
        assert page.headers["vary"] == found.headers["vary"] == "accept"


@pytest.mark.parametrize("name", names())
@on_loop
async def test_a_file_is_asked_for_again_and_sent_once(name: str) -> None:
    async with edge(Affine) as it:
        first = await it.http.get(f"/page/{name}")
        assert first.status_code == 200
        assert first.content == (FILES / name).read_bytes()
        assert first.headers["cache-control"] == "no-cache"
        for known in (first.headers["etag"], f'"other", W/{first.headers["etag"]}'):
            again = await it.http.get(f"/page/{name}", headers={"if-none-match": known})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == first.headers["etag"]
        other = await it.http.get(f"/page/{name}", headers={"if-none-match": '"other"'})
        assert other.status_code == 200


@pytest.mark.parametrize("path", ["/", "/docs", "/page/page.js", "/page/icon.svg", "/openapi.json"])
@on_loop
async def test_nothing_from_elsewhere_may_run(path: str) -> None:
    async with edge(Affine) as it:
        headers = (await it.http.get(path, headers=BROWSER)).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_pages_are_made_of_their_own_files_only() -> None:
    for name in ("index.html", "docs.html"):
        text = (FILES / name).read_text()
        for used in re.findall(r'(?:href|src)="([^"]+)"', text):
            if used.startswith("page/"):
                assert used.removeprefix("page/") in names(), used
            else:
                assert used in ("docs", "metrics", "./", "openapi.json"), used
        assert re.search(r"<script(?! type=\"module\" src=)|<style|style=| on[a-z]+=", text) is None
    for script in FILES.glob("*.js"):
        text = script.read_text()
        assert (
            re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
            is None
        )
        for used in re.findall(r' from "([^"]+)"', text):
            assert used.removeprefix("./") in names(), (script, used)


@pytest.mark.parametrize(
    "path", ["/page/", "/page/none.js", "/page/__init__.py", "/page/..%2fapp.py"]
)
@on_loop
async def test_other_files_are_not_there(path: str) -> None:
    async with edge(Affine) as it:
        answer = await it.http.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


@on_loop
async def test_the_api_as_a_document() -> None:
    async with edge(Affine, Two) as it:
        answer = await it.http.get("/openapi.json", headers={"host": "gpu-box:9000"})
        found = answer.json()
        validate(found)
        assert found["servers"] == [{"url": "http://gpu-box:9000"}]
        assert {"/v2/models/affine/infer", "/v2/models/two/infer"} <= set(found["paths"])
        for path, item in found["paths"].items():
            if "get" in item:
                told = item["get"]["responses"]
                # 501 beside 200: of what is not switched on here, as tasks.
                wanted = 200 if "200" in told and "501" not in told else 501
                assert (await it.http.get(path)).status_code == wanted, path


@pytest.mark.parametrize("host", ["a b", "x/y", "<b>", "a'b", "[::1", "a:port"])
@on_loop
async def test_a_host_that_is_none_is_not_repeated(host: str) -> None:
    async with edge(Affine) as it:
        found = (await it.http.get("/openapi.json", headers={"host": host})).json()
        assert found["servers"] == [{"url": "http://localhost:8000"}]


@on_loop
async def test_without_a_page_the_root_is_as_before_and_the_rest_is_not_there() -> None:
    async with edge(Affine, server={"page": False}) as it:
        lost = (await it.http.get("/openapi.json")).json()["error"]
        assert lost == "there is nothing at '/openapi.json'"
        assert (await it.http.get("/", headers=BROWSER)).json()["name"] == "batchpool"
        for path in ("/events", "/docs", "/openapi.json", "/page/page.css"):
            assert (await it.http.get(path)).status_code == 404


def test_the_wheel_has_the_files(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert {f"batchpool/frontend/dashboard/{name}" for name in names()} <= inside
