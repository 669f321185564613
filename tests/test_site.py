"""``make site``: the order of the pages, their links, what the check finds, and how the pages look."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import build_site
import pytest
from installers import Failure
from website import checking, navigation, staging
from workspace import ROOT


def test_every_page_has_one_place_in_the_navigation() -> None:
    listed = sorted(name for names in navigation.SECTIONS.values() for name in names)
    assert listed == sorted(page.stem for page in (ROOT / "docs").glob("*.md"))
    assert all((ROOT / f"{name}.md").is_file() for name in navigation.PROJECT)
    assert navigation.PACKAGES in navigation.index()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small tree with every kind of page and link."""
    root = tmp_path / "tree"
    pages = {
        "README.md": "# Home\n\nSee [the guide](docs/guide.md#two-words) and [core](core).\n",
        "docs/guide.md": (
            "# Guide\n\n## Two words\n\n`[a](b)` and [home](../README.md), [a file](../examples/run.toml),\n"
            "[a folder](../examples/), [the web](https://example.com), [more](more.md).\n\n"
            "```toml\nkey = 1  # [x](y)\n```\n\n"
            f"| key | meaning |\n|---|---|\n| `{'a_long_name.' * 12}` | {'many words ' * 30} |\n"
        ),
        "docs/more.md": "# More\n\n1. One\n\n   ```sh\n   ls\n   ```\n\n2. Two\n",
        "core/README.md": "# The core\n\n[Guide](../docs/guide.md)\n",
        "core/pyproject.toml": "",
        "examples/run.toml": "steps = 1\n",
    }
    for name in navigation.PROJECT:
        pages[f"{name}.md"] = f"# {name.capitalize()}\n"
    for name, text in pages.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(navigation, "SECTIONS", {"How-to": ("guide", "more"), "Reference": ()})
    monkeypatch.setattr(staging, "tracked_files", lambda: sorted(root.rglob("*.*")))
    return root


def test_links_hold_on_the_site(tree: Path, tmp_path: Path) -> None:
    staged = tmp_path / "staged"
    staged.mkdir()
    pages = staging.stage(staged, tree)
    assert tree / "core" / "README.md" in pages and len(pages) == 4 + len(navigation.PROJECT)
    guide = (staged / "docs" / "guide.md").read_text()
    for kept in (
        "`[a](b)`",
        "(https://example.com)",
        "key = 1  # [x](y)",
        "(../examples/run.toml)",
    ):
        assert kept in guide
    assert "[home](../index.md)" in guide and "[a folder]," in guide
    assert (staged / "examples" / "run.toml").read_text() == "steps = 1\n"
    index = (staged / "index.md").read_text()
    assert "[core](core/README.md)" in index and ":caption: How-to" in index
    assert (
        (staged / "core" / "README.md")
        .read_text()
        .startswith("---\norphan: true\n---\n\n# The core")
    )
    assert "## core\n\n- [The core](core/README.md)" in (staged / "packages.md").read_text()
    (tree / "docs" / "more.md").write_text("[gone](gone.md)\n")
    with pytest.raises(Failure, match=r"docs/more.md: link to gone.md, which does not exist"):
        staging.stage(tmp_path / "again", tree)


def test_what_is_not_whole_is_found(tmp_path: Path) -> None:
    (tmp_path / "style.css").write_text("@import 'https://fonts.example/a.css'; a { color: red }")
    (tmp_path / "b.html").write_text("<h1 id='here'>b</h1><a name='old'></a>")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "index.html").write_text("<a href='../b.html#old'>b</a>")
    (tmp_path / "a.html").write_text(
        "<link rel='icon' href='data:,'><link rel='next' href='https://example.com/'>"
        "<a href='b.html#here'>b</a><a href='sub/'>s</a><a href='https://example.com'>w</a><a href='#top' id='top'>t</a>"
    )
    assert checking.problems(tmp_path) == ["style.css loads https://fonts.example/a.css"]
    (tmp_path / "style.css").write_text("a { background: url(here.png) }")
    (tmp_path / "a.html").write_text(
        "<script src='//cdn.example/x.js'></script><link rel='preconnect' href='https://fonts.example'>"
        "<img src='https://example.com/a.png'><p style='background: url(https://example.com/b.png)'>"
        "<a href='b.html#there'>b</a><a href='c%20d.html'>c</a><a href='#gone'>t</a>"
    )
    assert checking.problems(tmp_path) == [
        "a.html loads https://example.com/b.png",
        "a.html loads //cdn.example/x.js",
        "a.html loads https://fonts.example",
        "a.html loads https://example.com/a.png",
        "a.html: link to #gone, but that page has no gone",
        "a.html: link to b.html#there, but that page has no there",
        "a.html: link to c%20d.html, which does not exist",
    ]


@contextmanager
def served(folder: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join(10)


@pytest.mark.turns("scripts/build_site.py", "scripts/website/*")
@pytest.mark.slow
@pytest.mark.backend
@pytest.mark.timeout(400)
def test_a_site_is_built_and_can_be_read(tree: Path, tmp_path: Path) -> None:
    """Of a small tree: all pages of this one take a minute of CPU."""
    from chromium import ARGUMENTS, chromium
    from playwright.sync_api import sync_playwright

    site = tmp_path / "site"
    assert build_site.build(site, tree) == 4 + len(navigation.PROJECT)
    asked: list[str] = []
    with served(site) as address, sync_playwright() as playwright:
        program = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        colours = {}
        for theme in ("light", "dark"):
            context = program.new_context(
                color_scheme=theme, viewport={"width": 1280, "height": 800}
            )
            page = context.new_page()
            page.on("request", lambda request: asked.append(request.url))
            page.goto(f"{address}docs/guide.html")
            colours[theme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert page.locator(".sidebar-tree a").all_inner_texts()[:2] == ["Guide", "More"]
        assert colours["light"] == "rgb(255, 255, 255)" != colours["dark"]
        page.goto(f"{address}search.html?q=words")
        page.locator("#search-results li a", has_text="Guide").first.wait_for(timeout=20_000)
        phone = program.new_page(viewport={"width": 360, "height": 740})
        phone.goto(f"{address}docs/guide.html")
        assert phone.evaluate("document.documentElement.scrollWidth") <= 360
        phone.goto(f"{address}docs/more.html")
        assert phone.locator("ol > li pre").count() == 1, (
            "the block belongs to the list's first item"
        )
        program.close()
    assert asked and all(url.startswith((address, "data:")) for url in asked), asked
    (tree / "docs" / "more.md").write_text("# More\n\n[no such heading](guide.md#nothing)\n")
    with pytest.raises(Failure, match=r"(?s)Sphinx refuses the pages.*docs/more.md.*nothing"):
        build_site.build(site, tree)
    assert (site / "docs" / "more.html").read_text().count("<li>") >= 2, "the last good one stays"
