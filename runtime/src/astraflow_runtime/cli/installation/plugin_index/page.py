"""The index as one page, without scripts and requests to other hosts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from astraflow_core.component import API_VERSION
from astraflow_runtime.cli.installation.plugin_index.entries import IndexEntry

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; }
th, td { text-align: left; vertical-align: top; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid #8884; }
.failed, .not { color: #c33; font-weight: 600; }
code { overflow-wrap: anywhere; font-size: .8em; }
"""


def apis(entries: Sequence[IndexEntry]) -> list[tuple[int, int]]:
    """Versions of the plugin API that appear, and that of this core; the newest last."""
    written = [plugin.api for entry in entries for plugin in entry.plugins]
    return sorted({API_VERSION, *(e.core_api for e in entries), *(api for api in written if api)})


def standing(entry: IndexEntry, core: tuple[int, int]) -> str:
    """What is known of an entry with a core of that API: the verdict of its check, or whether it loads."""
    if entry.core_api == core:
        return entry.verdict
    return "loads" if entry.loads(core) else "does not load"


def as_page(entries: Sequence[IndexEntry]) -> str:
    """Distributions, what each provides, and with which plugin API it goes."""
    versions = apis(entries)
    head = "".join(f'<th scope="col">API {major}.{minor}</th>' for major, minor in versions)
    matrix = "".join(
        f'<tr><th scope="row">{escape(entry.name)} {escape(entry.version)}</th>'
        + "".join(_cell(standing(entry, core)) for core in versions)
        + "</tr>\n"
        for entry in entries
    )
    rows = "".join(
        f'<tr><th scope="row">{escape(entry.name)}</th><td>{escape(entry.version)}</td>'
        f"<td>{'<br>'.join(map(escape, entry.components))}</td>"
        f'<td class="{escape(entry.verdict)}">{escape(entry.verdict)}, {entry.passed} of {entry.checks}</td>'
        f"<td><code>{escape(entry.digest)}</code></td></tr>\n"
        for entry in entries
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    columns = ("distribution", "version", "provides", "checks passed", "digest of the report")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>Plugins of AstraFlow</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        "<h1>Plugins of AstraFlow</h1>\n"
        "<p>Made of the reports that their authors published. A report is no signature: check what you install.</p>\n"
        f"<table>\n<tr>{''.join(f'<th>{each}</th>' for each in columns)}</tr>\n{rows}</table>\n"
        f"<h2>Compatibility</h2>\n<p>The verdict of the check with that plugin API; of others, whether a core of that API loads it.</p>\n"
        f"<table>\n<tr><th>distribution</th>{head}</tr>\n{matrix}</table>\n</body>\n</html>\n"
    )


def _cell(text: str) -> str:
    kind = "not" if text == "does not load" else text
    return f'<td class="{escape(kind)}">{escape(text)}</td>'
