"""The page of ``astraflow plugins index`` in a browser: narrow and wide, light and dark, by its links."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astraflow_runtime.cli import main
from astraflow_runtime.cli.installation.check_report import digest_of

URL = "https://example.org/a?b=1&c=%22"


def report(name: str, version: str, verdict: str, api: list[int]) -> dict[str, Any]:
    component = {"kind": "reward", "name": "an_answer_that_is_short", "capabilities": []}
    told = {
        "format": 1,
        "distribution": {
            "name": name,
            "version": version,
            "summary": f"A reward <img src=x> {'of many words ' * 9}",
            "links": [{"label": "Homepage", "url": URL}, {"label": "Issues", "url": f"{URL}2"}],
        },
        "files": "sha256:" + "0" * 64,
        "plugins": [
            {"name": "x", "api": api, "components": [component], "commands": [], "hooks": []}
        ],
        "core_api": api,
        "checks": [{"name": "manifest", "verdict": verdict, "summary": "", "problems": []}],
        "verdict": verdict,
    }
    return told | {"digest": digest_of(told)}


@pytest.mark.slow
@pytest.mark.backend
@pytest.mark.timeout(300)
def test_a_page_of_an_index_can_be_read_on_any_screen(tmp_path: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
    from chromium import ARGUMENTS, chromium
    from playwright.sync_api import sync_playwright

    reports, out = tmp_path / "reports", tmp_path / "index"
    reports.mkdir()
    longest = f"astraflow-plugin-{'of-somebody-' * 6}else"
    (reports / "a.json").write_text(json.dumps(report(longest, "1.0", "failed", [1, 0])))
    (reports / "b.json").write_text(json.dumps(report("b", "2.0rc1", "passed", [1, 1])))
    assert main(["plugins", "index", str(reports), "--out", str(out)]) == 0
    place = (out / "index.html").as_uri()
    colours, asked = set(), []
    with sync_playwright() as playwright:
        program = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        page = program.new_context(bypass_csp=True).new_page()  # axe is a script
        page.on("request", lambda request: asked.append(request.url))
        page.goto(place)
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            for width in (400, 1280, 3840):
                page.set_viewport_size({"width": width, "height": 900})
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                assert Axe().run(page).response["violations"] == []
            colours.add(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
        assert len(colours) == 2 and asked == [place]
        links = page.get_by_role("link", name="Homepage")
        assert [links.nth(n).get_attribute("href") for n in range(links.count())] == [URL, URL]
        assert page.locator("img, script").count() == 0
        page.get_by_role("link", name="passed, 1 of 1").click()
        page.wait_for_url("**/reports/b-2.0rc1.json", timeout=20_000)
        program.close()
