"""Pictures of measurements: panels of lines, steps or bars over numbers, as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from bench.studies.pictures import BOTTOM, COLOURS, HEIGHT, LEFT, LEGEND, TOP, WIDTH

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """``lines`` by their label; ``stairs``: a value holds until the next one. ``marks``: level → label of a dashed line."""

    title: str
    label: str
    lines: Mapping[str, Points]
    stairs: bool = False
    marks: Mapping[str, float] | None = None


def picture(panels: Sequence[Panel]) -> str:
    """The panels side by side."""
    entries = max(len(panel.lines) for panel in panels)
    height, width = TOP + HEIGHT + BOTTOM + LEGEND * entries, len(panels) * (WIDTH + LEFT + 20)
    drawn = "\n".join(
        f'<g transform="translate({number * (WIDTH + LEFT + 20)} 0)">{_drawn(panel)}</g>'
        for number, panel in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n{drawn}\n</svg>\n'
    )


def _drawn(panel: Panel) -> str:
    marks = panel.marks or {}
    points = [point for line in panel.lines.values() for point in line]
    least = min(0.0, min((x for x, _ in points), default=0.0))
    right = max((x for x, _ in points), default=1.0)
    top = max([y for _, y in points] + list(marks.values()), default=1.0) * 1.05 or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + (x - least) / ((right - least) or 1.0) * WIDTH, TOP + (1 - y / top) * HEIGHT

    def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'

    parts = [text(LEFT + WIDTH / 2, TOP - 10, panel.title)]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = TOP + (1 - share) * HEIGHT
        parts.append(f'<path d="M{LEFT} {y:.1f}h{WIDTH}" stroke="#ddd"/>')
        parts.append(text(LEFT - 4, y + 4, f"{share * top:.3g}", "end"))
        value = least + share * (right - least)
        parts.append(text(LEFT + share * WIDTH, TOP + HEIGHT + 15, f"{value:.3g}"))
    parts.append(text(LEFT + WIDTH / 2, TOP + HEIGHT + 30, panel.label))
    for words, level in marks.items():
        y = at(0, level)[1]
        parts.append(f'<path d="M{LEFT} {y:.1f}h{WIDTH}" stroke="#333" stroke-dasharray="4 3"/>')
        parts.append(text(LEFT + WIDTH - 2, y - 3, words, "end"))
    for number, (name, line) in enumerate(panel.lines.items()):
        colour, drawn, y_before = COLOURS[number % len(COLOURS)], [], 0.0
        for index, (x, y) in enumerate(line):
            here = at(x, y)
            if panel.stairs and index:
                drawn.append(f"{here[0]:.1f},{y_before:.1f}")
            drawn.append(f"{here[0]:.1f},{here[1]:.1f}")
            y_before = here[1]
        parts.append(
            f'<polyline points="{" ".join(drawn)}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        )
        y = TOP + HEIGHT + BOTTOM + LEGEND * number + 8
        parts.append(f'<path d="M{LEFT} {y - 4}h18" stroke="{colour}" stroke-width="2"/>')
        parts.append(text(LEFT + 24, y, name, "start"))
    return "\n".join(parts)
