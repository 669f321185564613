"""The curves of a run as one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from astraflow_core.launch.metrics import Metrics, Step

FILE = "curves.png"
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito (2008): told apart by people with any colour vision."""
_SMOOTH = 5


def draw_curves(metrics: Metrics, title: str, max_staleness: int, path: Path) -> None:
    """Reward, held-out accuracy, staleness and the trainer's waiting, by step, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.4), dpi=110, layout="constrained")
    axes = figure.subplots(2, 2)
    figure.suptitle(title)
    policies = list(dict.fromkeys(step.policy for step in metrics.steps))
    colours = {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(policies)}
    _reward(axes[0][0], metrics.steps, colours)
    _accuracy(axes[0][1], metrics, colours)
    _staleness(axes[1][0], metrics.steps, colours, max_staleness)
    _seconds(axes[1][1], metrics.steps, colours)
    for axis in axes.flat:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def _series(steps: Sequence[Step], policy: str, *names: str) -> tuple[list[int], list[float]]:
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


def _reward(axis: Any, steps: Sequence[Step], colours: dict[str, str]) -> None:
    for policy, colour in colours.items():
        x, y = _series(steps, policy, "reward")
        axis.plot(x, y, color=colour, alpha=0.3, linewidth=1)
        axis.plot(
            x, _smoothed(y), color=colour, linewidth=2, label=f"{policy}, mean of {_SMOOTH} steps"
        )
    axis.set(title="Reward of what was sampled", xlabel="step", ylabel="mean reward")


def _accuracy(axis: Any, metrics: Metrics, colours: dict[str, str]) -> None:
    records = [record.evaluation for record in metrics.evaluations]
    for policy, colour in colours.items():
        points = [
            (entry.versions[policy], accuracy)
            for entry in records
            if (accuracy := entry.accuracy_of(policy)) is not None
        ]
        if points:
            x, y = zip(*points, strict=True)
            axis.plot(x, y, color=colour, marker="o", markersize=4, linewidth=2, label=policy)
    axis.set(
        title="Accuracy on held-out prompts",
        xlabel="version",
        ylabel="accuracy",
        ylim=(-0.03, 1.03),
    )


def _staleness(axis: Any, steps: Sequence[Step], colours: dict[str, str], bound: int) -> None:
    for policy, colour in colours.items():
        x, y = _series(steps, policy, "staleness_mean")
        if x:
            axis.plot(x, y, color=colour, linewidth=1.5, label=f"{policy}, mean of the batch")
        x, y = _series(steps, policy, "staleness_max")
        axis.plot(
            x,
            y,
            color=colour,
            linewidth=1.5,
            linestyle=":",
            label=f"{policy}, largest of the batch",
        )
    axis.axhline(bound, color="#555555", linewidth=1, linestyle="--", label=f"bound ({bound})")
    axis.set(
        title="Staleness of trained sequences",
        xlabel="step",
        ylabel="versions",
        ylim=(-0.1, bound + 0.5),
    )


def _seconds(axis: Any, steps: Sequence[Step], colours: dict[str, str]) -> None:
    for policy, colour in colours.items():
        for name, style, label in (("wait_s", "-", "waits for data"), ("update_s", "--", "trains")):
            x, y = _series(steps, policy, name)
            if x:
                axis.plot(
                    x, y, color=colour, linestyle=style, linewidth=1.5, label=f"{policy} {label}"
                )
    axis.set(title="Seconds of each step", xlabel="step", ylabel="s")
    axis.set_ylim(bottom=0)
