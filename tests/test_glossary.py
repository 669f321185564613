"""docs/glossary.md explains the words of the other pages, and no others."""

from __future__ import annotations

import re

from workspace import ROOT

DOCS = ROOT / "docs"
GLOSSARY = (DOCS / "glossary.md").read_text(encoding="utf-8")
ENTRIES = re.findall(
    r"^- \*\*(.+?)\*\*(?: \((.+?)\))?: (.+?)(?=\n\n|\n- |\Z)", GLOSSARY, re.MULTILINE | re.DOTALL
)
TERMS = [term.lower() for term, _, _ in ENTRIES]


def folded(text: str) -> str:
    return " ".join(text.lower().split())


def test_every_term_is_explained_once_in_two_sentences_at_most() -> None:
    assert len(TERMS) == GLOSSARY.count("\n- **") > 40
    assert len(set(TERMS)) == len(TERMS)
    wrong = [term for term, _, text in ENTRIES if len(re.findall(r"\.(?=\s)", text)) > 3]
    assert not wrong, f"longer than two sentences: {wrong}"


def test_a_term_is_used_by_the_page_that_its_entry_links() -> None:
    wrong = []
    for term, also, text in ENTRIES:
        linked = re.findall(r"\]\(([\w-]+\.md)\)", text)
        pages = [folded((DOCS / page).read_text(encoding="utf-8")) for page in linked]
        if not any(word and word.lower() in page for page in pages for word in (term, also)):
            wrong.append(f"{term}: not in {linked}")
    assert not wrong, wrong


def test_terms_of_the_overview_are_in_the_glossary() -> None:
    """The overview introduces processes and seams in the first column of their tables, and a word in italics."""
    overview = (DOCS / "overview.md").read_text(encoding="utf-8")
    processes = overview.partition("## The processes")[2].partition("\n\n##")[0]
    seams = overview.partition("## Where to plug in")[2]
    cells = re.findall(r"^\| ([^|`]+?) \|", processes + seams, re.MULTILINE)
    cells = [cell for cell in cells if cell not in ("process", "seam")]
    named = {part.strip() for cell in cells for part in re.split(r"[,×]", cell)} - {"n"}
    named |= set(re.findall(r"(?<![*\w])\*(\w[\w ]*)\*(?!\*)", overview))
    assert len(named) > 12
    missing = sorted(word for word in named if word.lower() not in TERMS)
    assert not missing, f"not in docs/glossary.md: {missing}"


def test_readme_and_overview_link_the_glossary() -> None:
    for page, link in (("README.md", "docs/glossary.md"), ("docs/overview.md", "glossary.md")):
        assert f"]({link})" in (ROOT / page).read_text(encoding="utf-8"), page
