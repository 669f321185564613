"""The order of the pages on the site."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

SECTIONS: dict[str, tuple[str, ...]] = {
    "Tutorials": (
        "tutorial-first-run", "tutorial-reward-and-data", "tutorial-agent", "tutorial-environment", "tutorial-loss",
        "tutorial-gpus", "tutorial-hosts", "tutorial-debug", "tutorial-operate", "tutorial-publish",
    ),
    "How-to": (
        "your-run", "notebook", "does-not-learn", "doctor", "mismatch", "plan", "evaluate", "engines", "agents", "teams", "distillation", "images", "rollouts", "trackers", "pages", "monitoring",
        "replay", "clusters", "pool", "weights", "weights-delta", "security", "operate-with-an-agent", "tinker", "custom-raas",
        "custom-trainer", "write-a-plugin", "write-a-workflow", "write-an-environment", "write-an-engine", "write-a-trainer", "write-a-transport", "write-a-launcher", "coming-from-trl",
        "coming-from-verl", "coming-from-prime-rl", "coming-from-astraflow", "release",
    ),
    "Reference": (
        "configuration", "commands", "metrics", "distributions", "api", "modules", "hooks", "processes", "glossary",
    ),
    "Explanation": ("overview", "performance", "decisions"),
}  # fmt: skip
"""Title → pages of docs/, by name."""
PROJECT = ("CONTRIBUTING", "SECURITY", "CHANGELOG")
"""Pages of the root."""
SHORT = (":titlesonly:", ":maxdepth: 1")
"""Every page repeats the navigation: without the sections of all pages it is read and built more quickly."""
PACKAGES = "packages"
"""The page that lists the READMEs of all packages."""


def toctree(pages: Iterable[str], *options: str) -> str:
    """A list of pages as the directive of Sphinx."""
    return "\n".join(["```{toctree}", *options, "", *pages, "```"])


def index() -> str:
    """What the first page has below its text: the navigation."""
    parts = []
    for title, names in SECTIONS.items():
        pages = [f"docs/{name}" for name in names]
        listed = [*pages, PACKAGES] if title == "Reference" else pages
        parts.append(toctree(listed, f":caption: {title}", ":hidden:", *SHORT))
    return "\n\n".join([*parts, toctree(PROJECT, ":caption: Project", ":hidden:", *SHORT)]) + "\n"


def packages(titles: Mapping[str, str]) -> str:
    """The page of all packages, from page, such as ``libs/wire/README``, to title."""
    by_place: dict[str, list[str]] = defaultdict(list)
    for page, title in titles.items():
        by_place[page.partition("/")[0]].append(f"- [{title}]({page}.md)")
    lists = ["\n".join([f"## {place}", "", *items]) for place, items in by_place.items()]
    return "\n\n".join(["# Packages", "The README of each package.", *lists]) + "\n"
