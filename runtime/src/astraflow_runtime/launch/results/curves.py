"""The curves of a run as one picture."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astraflow_runtime.launch.results.metrics import MetricsFile, MetricsStep
from astraflow_runtime.telemetry.printable import printable
from astraflow_wire.host.disk import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE = "curves.png"
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito (2008): told apart by people with any colour vision."""
_STYLES = ("-", "--", ":", "-.")
_SMOOTH = 5
_MOST_SOURCES = 5


@dataclass(frozen=True, slots=True)
class _Line:
    """The first of ``names`` that a step has, drawn in ``style``."""

    names: tuple[str, ...]
    label: str
    style: str = "-"


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    unit: str
    lines: tuple[_Line, ...]
    top: float | None = None


_LENGTHS = _Panel(
    "Length of sampled sequences",
    "tokens",
    (
        _Line(("completion_length_mean",), "mean"),
        _Line(("completion_length_max",), "longest", ":"),
    ),
)
_SHARES = _Panel(
    "Truncated sequences and groups with equal rewards",
    "share",
    (
        _Line(("truncated_fraction",), "truncated at max_tokens"),
        _Line(("equal_groups_fraction",), "groups with equal rewards", "--"),
    ),
    top=1.03,
)
_ENTROPY = _Panel(
    "Entropy",
    "nats",
    (_Line(("entropy",), "entropy"), _Line(("entropy_estimate",), "estimate", "--")),
)
_KL = _Panel(
    "KL",
    "nats",
    (_Line(("kl",), "to the reference"), _Line(("approx_kl",), "of the update", "--")),
)
_GRADIENT = _Panel("Gradient", "norm", (_Line(("grad_norm",), "norm"),))
_SECONDS = _Panel(
    "Seconds of each step",
    "s",
    (_Line(("wait_s",), "waiting for data"), _Line(("update_s",), "trains", "--")),
)
_STALENESS = (
    _Line(("staleness_mean",), "mean of the batch"),
    _Line(("staleness_max",), "largest of the batch", ":"),
)
_PANELS = (_LENGTHS, _SHARES, _ENTROPY, _KL, _GRADIENT, _SECONDS)
DRAWN = frozenset({"reward", "reward_std", "pass_rate"}) | {
    name
    for line in (*_STALENESS, *(line for panel in _PANELS for line in panel.lines))
    for name in line.names
}
"""The figures of a step that :func:`draw_curves` looks at."""


def draw_curves(metrics: MetricsFile, title: str, max_staleness: int, path: Path) -> None:
    """What people look at first, by step, as a PNG; written whole or not at all. What no step has stays empty."""
    replace_file(path, picture_of(metrics, title, max_staleness, "png"))


def picture_of(metrics: MetricsFile, title: str, max_staleness: int, form: str) -> bytes:
    """The same as a ``"png"`` or an ``"svg"``."""
    return saved(figure_of(metrics, title, max_staleness), form)


def figure_of(metrics: MetricsFile, title: str, max_staleness: int) -> Figure:
    """The same as a figure of matplotlib."""
    from matplotlib.figure import (
        Figure,
    )  # half a second, which services and most commands never need

    figure = Figure(figsize=(20, 7.5), dpi=80)
    axes = figure.subplots(2, 5).flat
    # Fixed, since a layout that looks for room takes as long as the drawing.
    figure.subplots_adjust(0.04, 0.08, 0.99, 0.88, 0.24, 0.34)
    figure.suptitle(_plain(title))
    policies = list(dict.fromkeys(step.policy for step in metrics.steps))
    colours = {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(policies)}
    _reward(axes[0], metrics.steps, colours)
    _accuracy(axes[1], metrics, colours)
    _pass_rate(axes[2], metrics.steps, colours)
    for axis, panel in zip(axes[3:9], _PANELS, strict=True):
        _draw(axis, panel, metrics.steps, colours)
    _staleness(axes[9], metrics.steps, colours, max_staleness)
    for axis in axes:
        axis.locator_params(nbins=5)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=8, loc="upper left", framealpha=0.7, edgecolor="none")
    return figure


def compared(runs: Mapping[str, MetricsFile]) -> bytes:
    """Reward, accuracy and loss of several runs over each other, a colour for each run and a line style for each policy, as an
    SVG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(20, 5.5), dpi=80)
    reward, accuracy, loss = figure.subplots(1, 3)
    figure.subplots_adjust(0.04, 0.1, 0.99, 0.93, 0.16)
    for number, (name, metrics) in enumerate(runs.items()):
        policies = list(dict.fromkeys(step.policy for step in metrics.steps))
        for index, policy in enumerate(policies):
            label = _plain(f"{name}, {policy}" if len(policies) > 1 else name)
            look = {
                "color": _COLOURS[number % len(_COLOURS)],
                "linestyle": _STYLES[index % len(_STYLES)],
                "label": label,
            }
            x, y = _series(metrics.steps, policy, "reward")
            _plot(reward, (x, _smoothed(y)), **look)
            _plot(accuracy, _evaluated(metrics, policy), **look)
            _plot(loss, _series(metrics.steps, policy, "loss"), **look)
    reward.set(title=f"Reward, mean of {_SMOOTH} steps", xlabel="step")
    accuracy.set(title="Accuracy on evaluation sets", xlabel="version", ylim=(-0.03, 1.03))
    loss.set(title="Loss", xlabel="step")
    for axis in (reward, accuracy, loss):
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=9, framealpha=0.7, edgecolor="none")
    return saved(figure, "svg")


def _plain(text: str) -> str:
    """As matplotlib draws it letter for letter: it reads what is between dollar signs as mathematics, and an SVG has no control
    characters."""
    return printable(text).replace("$", r"\$")


def saved(figure: Figure, form: str) -> bytes:
    """A figure as a ``"png"`` or an ``"svg"``, which has no date in it."""
    picture = io.BytesIO()
    figure.savefig(picture, format=form, metadata={"Date": None} if form == "svg" else None)
    return picture.getvalue()


def _series(
    steps: Sequence[MetricsStep], policy: str, *names: str
) -> tuple[list[int], list[float]]:
    """Steps and values of the first of ``names`` that a step has."""
    points = [
        (step.step, next(step.figures[name] for name in names if name in step.figures))
        for step in steps
        if step.policy == policy and any(name in step.figures for name in names)
    ]
    return [x for x, _ in points], [y for _, y in points]


def _smoothed(values: Sequence[float]) -> list[float]:
    return [
        sum(values[max(0, i - _SMOOTH + 1) : i + 1]) / len(values[max(0, i - _SMOOTH + 1) : i + 1])
        for i in range(len(values))
    ]


def _plot(axis: Any, points: tuple[Iterable[int], Iterable[float]], **look: Any) -> None:
    """A line, with a dot for each of few points: a line through one is not to be seen."""
    x, y = list(points[0]), list(points[1])
    if x:
        axis.plot(x, y, linewidth=1.5, marker="." if len(x) < _SMOOTH else "", **look)


def _draw(axis: Any, panel: _Panel, steps: Sequence[MetricsStep], colours: dict[str, str]) -> None:
    for policy, colour in colours.items():
        for line in panel.lines:
            points = _series(steps, policy, *line.names)
            _plot(axis, points, color=colour, linestyle=line.style, label=f"{policy}, {line.label}")
    axis.set(title=panel.title, xlabel="step", ylabel=panel.unit)
    if panel.top is not None:
        axis.set_ylim(-0.03, panel.top)


def _reward(axis: Any, steps: Sequence[MetricsStep], colours: dict[str, str]) -> None:
    for policy, colour in colours.items():
        x, y = _series(steps, policy, "reward")
        axis.plot(x, y, color=colour, alpha=0.3, linewidth=1)
        _plot(axis, (x, _smoothed(y)), color=colour, label=f"{policy}, mean of {_SMOOTH} steps")
        spread = _series(steps, policy, "reward_std")
        _plot(axis, spread, color=colour, linestyle=":", label=f"{policy}, standard deviation")
    axis.set(title="Reward of sampled sequences", xlabel="step", ylabel="reward")


def _evaluated(metrics: MetricsFile, policy: str) -> tuple[list[int], list[float]]:
    """Versions that were evaluated, and their accuracies."""
    entries = [record.evaluation for record in metrics.evaluations]
    points = [
        (entry.versions[policy], accuracy)
        for entry in entries
        if (accuracy := entry.accuracy_of(policy)) is not None
    ]
    return [x for x, _ in points], [y for _, y in points]


def _accuracy(axis: Any, metrics: MetricsFile, colours: dict[str, str]) -> None:
    for policy, colour in colours.items():
        x, y = _evaluated(metrics, policy)
        if x:
            axis.plot(x, y, color=colour, marker="o", markersize=4, linewidth=2, label=policy)
    axis.set(
        title="Accuracy on evaluation sets",
        xlabel="version",
        ylabel="accuracy",
        ylim=(-0.03, 1.03),
    )


def _pass_rate(axis: Any, steps: Sequence[MetricsStep], colours: dict[str, str]) -> None:
    """All prompts, and each of the first few sources."""
    for policy, colour in colours.items():
        own = [step for step in steps if step.policy == policy]
        points = _series(own, policy, "pass_rate")
        _plot(axis, points, color=colour, label=f"{policy}, all prompts")
        sources = list(dict.fromkeys(name for step in own for name in step.pass_rates))
        for number, source in enumerate(sources[:_MOST_SOURCES]):
            found = [
                (step.step, step.pass_rates[source]) for step in own if source in step.pass_rates
            ]
            several = len(colours) > 1
            axis.plot(
                *zip(*found, strict=True),
                color=_COLOURS[(number + 1) % len(_COLOURS)],
                linewidth=1,
                linestyle="--",
                label=f"{policy}, {source}" if several else source,
            )
    axis.set(title="Pass rate in training", xlabel="step", ylabel="pass rate", ylim=(-0.03, 1.03))


def _staleness(
    axis: Any, steps: Sequence[MetricsStep], colours: dict[str, str], bound: int
) -> None:
    _draw(axis, _Panel("Staleness of trained sequences", "versions", _STALENESS), steps, colours)
    axis.axhline(bound, color="#555555", linewidth=1, linestyle="--", label=f"bound ({bound})")
    axis.set_ylim(-0.1, bound + 0.5)
