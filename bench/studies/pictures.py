"""Learning curves as SVG, written by hand: a line per setting, the mean over seeds, a band from least to most."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from html import escape

from bench.studies.records import Runs, of

COLOURS = ("#1b6ca8", "#d1495b", "#2a9d6f", "#8a5fbf", "#e09f3e", "#5c6770", "#17a2b8")
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, LEGEND = 340, 220, 44, 28, 40, 16

Line = list[tuple[float, float, float, float]]
"""x, mean, least, most."""


def panels(
    runs: Runs,
    wanted: Mapping[str, Mapping[str, str]],
    field: str,
    label: str,
    limit: float = math.inf,
    shown: str = "held-out accuracy, greedy",
) -> str:
    """Panels side by side: title → line label → name of its runs. x is the points' ``field`` up to ``limit``, y
    their ``greedy``, which is what ``shown`` says."""
    entries = max(len(lines) for lines in wanted.values())
    height = TOP + HEIGHT + BOTTOM + LEGEND * entries
    parts = []
    for number, (title, names) in enumerate(wanted.items()):
        lines = {name: line(of(runs, run), field) for name, run in names.items()}
        lines = {name: [p for p in points if p[0] <= limit] for name, points in lines.items()}
        lines = {name: points for name, points in lines.items() if points}
        parts.append(f'<g transform="translate({number * (WIDTH + LEFT + 16)} 0)">')
        parts += _panel(title, lines, f"{label} → {shown}")
        parts.append("</g>")
    width = len(wanted) * (WIDTH + LEFT + 16)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def line(runs: Runs, field: str) -> Line:
    """The points of several seeds, evaluation by evaluation, as far as each of them went."""
    together = zip(*(run["points"] for run in runs), strict=False)
    return [
        (
            statistics.fmean(point[field] for point in points),
            statistics.fmean(point["greedy"] for point in points),
            min(point["greedy"] for point in points),
            max(point["greedy"] for point in points),
        )
        for points in together
    ]


def _panel(title: str, lines: Mapping[str, Line], label: str) -> list[str]:
    most = max((points[-1][0] for points in lines.values()), default=1.0) or 1.0

    def at(x: float, y: float) -> str:
        return f"{LEFT + x / most * WIDTH:.1f},{TOP + (1 - y) * HEIGHT:.1f}"

    def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'

    parts = [text(LEFT + WIDTH / 2, TOP - 10, title)]
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = TOP + (1 - tick) * HEIGHT
        parts.append(f'<path d="M{LEFT} {y:.1f}h{WIDTH}" stroke="#ddd"/>')
        parts.append(text(LEFT - 4, y + 4, f"{tick:g}", "end"))
        parts.append(text(LEFT + tick * WIDTH, TOP + HEIGHT + 15, f"{tick * most:.0f}"))
    parts.append(text(LEFT + WIDTH / 2, TOP + HEIGHT + 30, label))
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        upper: Sequence[str] = [at(x, high) for x, _, _, high in points]
        lower: Sequence[str] = [at(x, low) for x, _, low, _ in reversed(points)]
        middle = " ".join(at(x, y) for x, y, _, _ in points)
        band = " ".join([*upper, *lower])
        parts.append(f'<polygon points="{band}" fill="{colour}" opacity="0.12"/>')
        parts.append(
            f'<polyline points="{middle}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
        )
        y = TOP + HEIGHT + BOTTOM + LEGEND * number + 8
        parts.append(f'<path d="M{LEFT} {y - 4}h18" stroke="{colour}" stroke-width="2"/>')
        parts.append(text(LEFT + 24, y, name, "start"))
    return parts
