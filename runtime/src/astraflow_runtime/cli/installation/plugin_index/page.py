"""The index as one page, without scripts and requests to other hosts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from astraflow_core.component import API_VERSION
from astraflow_runtime.cli.installation.plugin_index.collected import PublishedReport
from astraflow_runtime.cli.installation.plugin_index.entries import IndexEntry

REPORTS = "reports"
READMES = "readmes"
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; --line: #8886; --quiet: #5a5a5a; --bad: #b3261e; }
html { background: Canvas; color: CanvasText; }
body { max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }
.table { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { text-align: left; vertical-align: top; padding: .4rem 1.5rem .4rem 0; border-bottom: 1px solid var(--line); }
th p, td p { margin: 0; font-weight: 400; }
.quiet { color: var(--quiet); }
.failed, .not { color: var(--bad); font-weight: 600; }
.matrix td, li { white-space: nowrap; }
.matrix th { min-width: 5rem; overflow-wrap: anywhere; }
code { overflow-wrap: anywhere; font-size: .8em; }
a { color: LinkText; }
.failed a { color: inherit; }
ul { list-style: none; margin: 0; padding: 0; }
@media (prefers-color-scheme: dark) { :root { --quiet: #a8a8a8; --bad: #ff8a80; } }
@media (max-width: 60rem) {
  .list thead { position: absolute; clip-path: inset(50%); }
  .list tr, .list th, .list td { display: block; border: 0; padding: .15rem 0; }
  .list tr { border-bottom: 1px solid var(--line); padding: .8rem 0; }
  .list td[data-label]::before { content: attr(data-label) ": "; color: var(--quiet); }
  .list td ul { display: inline; }
  .list td li { display: inline-block; margin-right: .75rem; }
}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_COLUMNS = ("distribution", "version", "provides", "checks", "links", "digest of the report")


def apis(entries: Sequence[IndexEntry]) -> list[tuple[int, int]]:
    """Versions of the plugin API that appear, and that of this core; the newest last."""
    written = [plugin.api for entry in entries for plugin in entry.plugins]
    return sorted({API_VERSION, *(e.core_api for e in entries), *(api for api in written if api)})


def standing(entry: IndexEntry, core: tuple[int, int]) -> str:
    """What is known of an entry with a core of that API: the verdict of its check, or whether it loads."""
    if entry.core_api == core:
        return entry.verdict
    return "loads" if entry.loads(core) else "does not load"


def as_page(found: Sequence[PublishedReport]) -> str:
    """Distributions, what each provides, pages of their authors, and with which plugin API each goes."""
    head = "".join(f'<th scope="col">{each}</th>' for each in _COLUMNS)
    rows = "".join(map(_row, found))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>Plugins of AstraFlow</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        "<h1>Plugins of AstraFlow</h1>\n"
        "<p>Created from the reports that the authors published. A report is not a signature: check what you install with "
        "<code>astraflow plugin check</code>.</p>\n"
        f'<table class="list">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n'
        f"{_matrix([each.entry for each in found])}</main>\n</body>\n</html>\n"
    )


def _row(published: PublishedReport) -> str:
    entry = published.entry
    summary = f'<p class="quiet">{escape(entry.summary)}</p>' if entry.summary else ""
    verdict = f"{escape(entry.verdict)}, {entry.passed} of {entry.checks} passed"
    cells = (
        escape(entry.version),
        _listed(map(escape, entry.components)),
        f'<a href="{REPORTS}/{quote(published.stem)}.json">{verdict}</a>',
        _listed(_links(published)),
        f"<code>{escape(entry.digest)}</code>",
    )
    classes = ("", "", entry.verdict, "", "")
    return (
        f'<tr><th scope="row">{escape(entry.name)}{summary}</th>'
        + "".join(
            f'<td class="{kind}" data-label="{label}">{cell}</td>'
            for label, kind, cell in zip(_COLUMNS[1:], classes, cells, strict=True)
        )
        + "</tr>\n"
    )


def _links(published: PublishedReport) -> list[str]:
    links = [
        f'<a href="{escape(link.url)}" rel="nofollow noopener noreferrer">{escape(link.label)}</a>'
        for link in published.entry.links
    ]
    readme = f'<a href="{READMES}/{quote(published.stem)}.txt">README</a>'
    return [readme, *links] if published.readme else links


def _listed(items: Sequence[str] | map[str]) -> str:
    listed = "".join(f"<li>{item}</li>" for item in items)
    return f"<ul>{listed}</ul>" if listed else "–"


def _matrix(entries: Sequence[IndexEntry]) -> str:
    versions = apis(entries)
    head = "".join(f'<th scope="col">API {major}.{minor}</th>' for major, minor in versions)
    rows = "".join(
        f'<tr><th scope="row">{escape(entry.name)} {escape(entry.version)}</th>'
        + "".join(_cell(standing(entry, core)) for core in versions)
        + "</tr>\n"
        for entry in entries
    )
    return (
        "<h2>Compatibility</h2>\n<p>For the plugin API with which a plugin was checked, the verdict of that check; for each "
        "other one, whether a core that has it loads the plugin.</p>\n"
        '<div class="table" role="region" aria-label="Compatibility" tabindex="0">\n<table class="matrix">\n'
        f'<thead><tr><th scope="col">distribution</th>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n'
    )


def _cell(text: str) -> str:
    kind = "not" if text == "does not load" else text
    return f'<td class="{escape(kind)}">{escape(text)}</td>'
