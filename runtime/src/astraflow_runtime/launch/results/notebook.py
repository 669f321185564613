"""What a run shows of itself in a notebook: a table and its curves, frames, and a picture."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astraflow_core.errors import UserError
from astraflow_runtime.launch.results import curves, frames
from astraflow_runtime.launch.results.metrics import MetricsFile, read_metrics
from astraflow_runtime.launch.results.report import headline, summary_rows
from astraflow_runtime.launch.view.formatting import number
from astraflow_runtime.rollouts.reader import RolloutReader
from astraflow_runtime.telemetry.printable import printable
from astraflow_wire.host.disk import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


FORMS = ("png", "svg")


class CurvesPicture:
    """The curves of a run, which a notebook shows. ``figure``: matplotlib's, for changes."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure

    def _repr_png_(self) -> bytes:
        return curves.saved(self.figure, "png")

    def save(self, path: str | Path) -> None:
        """Write a PNG, or an SVG if ``path`` ends so. :class:`UserError` for another ending, and where no file can be
        written."""
        file = Path(path).expanduser()
        form = file.suffix.lower().removeprefix(".")
        if form not in FORMS:
            raise UserError(
                f"{file}: a picture is written as .png or .svg; give a name that ends in one of these"
            )
        try:
            replace_file(file, curves.saved(self.figure, form))
        except OSError as error:
            raise UserError(f"{file} cannot be written: {error.strerror or error}") from error


class RunViews:
    """Reads what a run has left in its ``directory`` so far; ``summary`` is empty until it has ended."""

    __slots__ = ()
    directory: Path
    summary: dict[str, Any]

    @property
    def state(self) -> str:
        """``finished``, ``stopped`` or ``failed``; empty if it is running, or was killed."""
        return str(self.summary.get("state", ""))

    def metrics_frame(self) -> DataFrame:
        """The steps of the run as a frame of pandas: a column for each figure, a row for each step of each policy."""
        return frames.metrics_frame(read_metrics(self.directory))

    def evaluations_frame(self) -> DataFrame:
        """The evaluations as a frame of pandas: a row for each set of each."""
        return frames.evaluations_frame(read_metrics(self.directory))

    def rollouts(self) -> RolloutReader:
        """The store of its rollouts; :class:`UserError` if it has none."""
        return RolloutReader(self.directory)

    def rollouts_frame(self, where: str = "") -> DataFrame:
        """Stored trajectories that fit a filter, such as ``"step>=10 reward<0.5"``, as a frame of pandas."""
        return frames.rollouts_frame(self.rollouts().entries(where))

    def plot(self) -> CurvesPicture:
        """The curves of the run, as in ``curves.png``."""
        frames.optional("matplotlib", "plot()")
        metrics = read_metrics(self.directory)
        bound = self.summary.get("max_staleness_allowed", _largest_staleness(metrics))
        return CurvesPicture(curves.figure_of(metrics, self._title(), bound))

    def _title(self) -> str:
        return headline(self.summary) if self.summary else self.directory.name

    def _rows(self, metrics: MetricsFile) -> Iterator[tuple[str, str]]:
        if self.summary:
            yield from summary_rows(self.summary)
            return
        yield "state", "it has not ended, or was killed: there is no summary.json"
        newest = {step.policy: step for step in metrics.steps}
        for policy, step in newest.items():
            prefix = f"{policy}: " if len(newest) > 1 else ""
            yield f"{prefix}steps", str(step.step)
            if (reward := step.figures.get("reward")) is not None:
                yield f"{prefix}reward", f"{number(reward)} in the newest step"

    def _repr_html_(self) -> str:
        """A table and the curves: no script, nothing from another host, and what the run wrote as text only."""
        metrics = read_metrics(self.directory)
        rows = "".join(
            f'<tr><th scope="row" style="text-align:left">{_text(label)}</th>'
            f'<td style="text-align:left">{_text(text)}</td></tr>'
            for label, text in self._rows(metrics)
        )
        title = _text(self._title())
        return (
            f"<section><h4>{title}</h4><table>{rows}</table>{self._picture(metrics)}"
            f"<p>in <code>{_text(self.directory)}</code></p></section>"
        )

    def _picture(self, metrics: MetricsFile) -> str:
        if not metrics.steps:
            return ""
        try:
            picture = self.plot()._repr_png_()
        except UserError as error:  # the table is worth showing without it
            return f"<p>{_text(error)}</p>"
        encoded = base64.b64encode(picture).decode()
        return f'<img alt="curves of the run" style="max-width:100%;background:#fff" src="data:image/png;base64,{encoded}">'


def _largest_staleness(metrics: MetricsFile) -> int:
    return int(max((s.figures.get("staleness_max", 0) for s in metrics.steps), default=0))


def _text(value: object) -> str:
    return escape(" ".join(printable(line) for line in str(value).split("\n")))
