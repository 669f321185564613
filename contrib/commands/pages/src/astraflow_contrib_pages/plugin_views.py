"""Views of a trajectory that plugins of its run have (``astraflow_views``): plain data, checked, and never HTML."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from astraflow_contrib_pages.views.process import ViewsFailed, ViewsProcess
from astraflow_core.catalog import Catalog
from astraflow_core.errors import UserError
from astraflow_core.installed.provenance import FILE, read_plugins
from astraflow_runtime.telemetry.printable import printable

HOOK = "astraflow_views"
MOST_VIEWS, MOST_ROWS, MOST_COLUMNS, MOST_TEXT = 20, 500, 64, 500
MOST_PNG_BYTES, MOST_PIXELS = 1 << 20, 4096
COLOURS = 8
_PNG = b"\x89PNG\r\n\x1a\n"
Cell = str | int | float | bool | None


class FactsView(msgspec.Struct, tag="facts", tag_field="kind", forbid_unknown_fields=True):
    """Names with their values."""

    title: str
    facts: dict[str, Cell]


class TableView(msgspec.Struct, tag="table", tag_field="kind", forbid_unknown_fields=True):
    """Rows as long as ``columns``."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]


class GridView(msgspec.Struct, tag="grid", tag_field="kind", forbid_unknown_fields=True):
    """Small cells. ``colours``: text of a cell \u2192 one of eight colours; ``labels``: one for each row, or none."""

    title: str
    rows: list[list[str]]
    colours: dict[str, int] = {}
    labels: list[str] = []


class ImageView(msgspec.Struct, tag="image", tag_field="kind", forbid_unknown_fields=True):
    """A picture; ``alt`` describes it for screen readers."""

    title: str
    png: bytes
    alt: str


class _Provided(msgspec.Struct):
    plugin: str = ""
    distribution: str = ""
    version: str = ""
    components: dict[str, str] = {}


View = FactsView | TableView | GridView | ImageView


class PluginViews:
    """Those of the run in ``directory``, of the plugins that its ``plugins.json`` names and that are installed here."""

    def __init__(self, directory: Path, process: ViewsProcess) -> None:
        self._directory, self._process = directory, process
        self._names: tuple[list[str], list[str]] | None = None

    @property
    def any(self) -> bool:
        """Whether a plugin may have some."""
        return bool(self._with_views()[1])

    def of(self, trajectory: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Views of a trajectory as the page draws them; in place of those of a plugin that fails or takes too long, why. Of
        one thread at a time."""
        found: list[dict[str, Any]] = []
        plugins, with_views = self._with_views()
        for plugin in with_views:
            try:
                given = self._process.ask(plugins, plugin, trajectory)
                if len(given) > MOST_VIEWS:
                    raise ValueError(f"{len(given)} views; at most {MOST_VIEWS} are shown")
                views = [checked(view) for view in given]
            except (ViewsFailed, ValueError) as error:
                title = f"{HOOK} of plugin {plugin}"
                views = [{"kind": "problem", "title": title, "reason": str(error)[:MOST_TEXT]}]
            found += views
        return found

    def _with_views(self) -> tuple[list[str], list[str]]:
        """The plugins of the run, and those of them with views that are installed here."""
        if self._names is None:
            try:
                entries = plugins_of(self._directory)
            except UserError:  # the page Plugins says so; the rest of a trajectory is shown anyway
                entries = []
            names = sorted({entry["plugin"] for entry in entries} - {""})
            plugins = Catalog.discover(only=names).plugins if names else []
            self._names = names, [p.name for p in plugins if p.healthy and HOOK in p.hooks]
        return self._names


def plugins_of(directory: Path) -> list[dict[str, Any]]:
    """What ``plugins.json`` of a run has: entries with texts ``plugin``, ``distribution`` and ``version`` and a table
    ``components``. :class:`UserError` if it is damaged."""
    try:
        found = msgspec.convert(read_plugins(directory), list[_Provided])
    except msgspec.ValidationError as error:
        raise UserError(f"{directory / FILE} is damaged: {error}") from error
    return [msgspec.to_builtins(entry) for entry in found]


def checked(given: Any) -> dict[str, Any]:
    """A view as the page draws it; ``ValueError`` for one that breaks a rule."""
    view = msgspec.convert(given, View)  # its error is a ValueError
    match view:
        case FactsView(facts=facts):
            _within(len(facts), MOST_ROWS, "facts")
            view.facts = {_cut(name): _cut(value) for name, value in facts.items()}
        case TableView(columns=columns, rows=rows):
            _within(len(columns), MOST_COLUMNS, "columns")
            _within(len(rows), MOST_ROWS, "rows")
            if any(len(row) != len(columns) for row in rows):
                raise ValueError(f"a row is not as long as the {len(columns)} columns")
            view.columns = [_cut(column) for column in columns]
            view.rows = [[_cut(cell) for cell in row] for row in rows]
        case GridView(rows=rows, labels=labels, colours=colours):
            _within(len(rows), MOST_ROWS, "rows")
            _within(max(map(len, rows), default=0), MOST_COLUMNS, "columns")
            if labels and len(labels) != len(rows):
                raise ValueError(f"{len(labels)} labels for {len(rows)} rows")
            if not all(0 <= colour < COLOURS for colour in colours.values()):
                raise ValueError(f"colours are numbers from 0 to {COLOURS - 1}")
            view.rows = [[_cut(cell) for cell in row] for row in rows]
            view.labels = [_cut(label) for label in labels]
            view.colours = {_cut(text): colour for text, colour in colours.items()}
        case ImageView(png=png, alt=alt):
            return {
                "kind": "image",
                "title": _cut(view.title),
                "alt": _cut(alt),
                "src": _source(png),
            }
    view.title = _cut(view.title)
    found: dict[str, Any] = msgspec.to_builtins(view)
    return found


def _within(count: int, most: int, what: str) -> None:
    if count > most:
        raise ValueError(f"{count} {what}; at most {most}")


def _cut(value: Any) -> Any:
    return printable(value[:MOST_TEXT]) if isinstance(value, str) else value


def _source(png: bytes) -> str:
    """A PNG as a data URI: its size is in the header (PNG, third edition, 11.2.1), which is looked at before a browser
    makes room for the pixels."""
    _within(len(png), MOST_PNG_BYTES, "bytes of an image")
    if not png.startswith(_PNG) or len(png) < 24:
        raise ValueError("an image is not a PNG file")
    width, height = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
    _within(max(width, height), MOST_PIXELS, "pixels of an image's side")
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
