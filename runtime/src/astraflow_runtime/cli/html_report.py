"""A report as one self-contained HTML file: images are embedded, without scripts or requests to
other hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import takewhile
from pathlib import Path
from typing import Any

import tomli_w

from astraflow_runtime.cli.run_directory import read_config
from astraflow_runtime.launch.results import curves
from astraflow_runtime.launch.results.config_differences import differing, flatten
from astraflow_runtime.launch.results.metrics import read_metrics
from astraflow_runtime.launch.results.report import headline, read_whole_summary, summary_rows
from astraflow_runtime.telemetry.printable import printable
from astraflow_wire.redaction import redacted, without_secrets

MOST_COMPARED = 8
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { text-align: left; vertical-align: top; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid #8884; }
figure { margin: 1rem 0; overflow-x: auto; background: #fff; border-radius: 6px; }
figure svg { width: 100%; min-width: 50rem; height: auto; display: block; }
pre { overflow-x: auto; }
summary { cursor: pointer; }
.scroll { overflow-x: auto; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # no script, no other host


def html_report(directories: Sequence[Path]) -> str:
    """The report of an ended run, or of several side by side."""
    runs = {_name(directory, directories): directory for directory in directories}
    title = ", ".join(runs) if len(runs) > 1 else headline(read_whole_summary(directories[0]))
    parts = [f"<h1>{_text(title)}</h1>"]
    if len(runs) > 1:
        parts += _comparison(runs)
    for name, directory in runs.items():
        parts += _run(name, directory, several=len(runs) > 1)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _name(directory: Path, among: Sequence[Path]) -> str:
    """The folder's name, or its path where another has the same."""
    alike = [other for other in among if other.name == directory.name]
    return str(directory) if len(alike) > 1 else directory.name


def _comparison(runs: Mapping[str, Path]) -> Iterable[str]:
    metrics = {name: read_metrics(directory) for name, directory in runs.items()}
    yield _figure(curves.compared(metrics), f"Reward, accuracy and loss of {', '.join(runs)}")
    figures = {name: dict(summary_rows(read_whole_summary(path))) for name, path in runs.items()}
    labels = list(dict.fromkeys(label for own in figures.values() for label in own))
    yield "<h2>Key figures</h2>"
    yield _table(labels, figures)
    flat = {
        name: flatten(without_secrets(read_config(directory))) for name, directory in runs.items()
    }
    keys = differing(flat)
    yield "<h2>Differences in configuration</h2>"
    if not keys:
        yield "<p>None, but for names and folders.</p>"
        return
    yield _table(
        keys,
        {
            name: {key: repr(own[key]) if key in own else "–" for key in keys}
            for name, own in flat.items()
        },
    )


def _table(labels: Sequence[str], columns: Mapping[str, Mapping[str, str]]) -> str:
    """A row for each label, a column for each run."""
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in columns)
    rows = [
        f'<tr><th scope="row">{_text(label)}</th>'
        + "".join(f"<td>{_text(own.get(label, '–'))}</td>" for own in columns.values())
        + "</tr>"
        for label in labels
    ]
    return f'<div class="scroll"><table><tr><td></td>{head}</tr>{"".join(rows)}</table></div>'


def _run(name: str, directory: Path, several: bool) -> Iterable[str]:
    summary, metrics = read_whole_summary(directory), read_metrics(directory)
    if several:
        yield f"<h2>{_text(name)}</h2><p>{_text(headline(summary))}</p>"
    rows = "".join(
        f'<tr><th scope="row">{_text(label)}</th><td>{_text(text)}</td></tr>'
        for label, text in summary_rows(summary)
    )
    yield f'<div class="scroll"><table>{rows}</table></div>'
    if metrics.steps:
        title = f"{summary['name']}, seed {summary['seed']}"
        picture = curves.picture_of(metrics, title, summary["max_staleness_allowed"], "svg")
        yield _figure(picture, f"Curves of {name}")
    yield _details("Configuration", _config(directory))
    if plugins := _read(directory / "plugins.json"):
        yield _details("Packages that provided its components", plugins)


def _config(directory: Path) -> str:
    """The configuration without its secrets, with the comments that it begins with."""
    text = _read(directory / "config.toml")
    notes = takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True))
    if not text:
        return ""
    return redacted("".join(notes)) + tomli_w.dumps(without_secrets(read_config(directory)))


def _figure(svg: bytes, label: str) -> str:
    """A matplotlib figure as an SVG, with ids that are unique in the page."""
    body = svg.decode("utf-8")
    body = body[body.index("<svg") :]
    mark = re.sub(r"\W+", "-", label)
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{mark}-", body)
    return f'<figure role="img" aria-label="{_text(label)}">{body}</figure>'


def _details(title: str, text: str) -> str:
    return f"<details><summary>{_text(title)}</summary><pre>{_text(text)}</pre></details>"


def _read(file: Path) -> str:
    return file.read_text("utf-8", errors="replace") if file.is_file() else ""


def _text(value: Any) -> str:
    """Text, escaped for HTML."""
    lines = str(value).split("\n")
    return escape("\n".join(map(printable, lines)))
