"""What the live view draws: the state of a run in as many lines and columns as there are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from astraflow_core.config.models import RunConfig
from astraflow_core.protocols.launcher import ProcessState
from astraflow_runtime.launch.view.formatting import (
    count,
    duration,
    episode_metrics,
    number,
    probe_gap,
    rejections,
    sampled,
)
from astraflow_runtime.launch.view.starting import Starting, StartProgress
from astraflow_wire.policy_status import PolicyStatus
from astraflow_wire.status import Status

_KEPT_WAITS = 6
_KEPT_METRICS = 6
_SHORTEST_WAIT_S = 2.0
"""Shorter waits appear and disappear between two pictures."""
_MOST_SPARKS = 40
_FEWEST_SPARKS = 8
_SPARKS = "▁▂▃▄▅▆▇█"
_BORDERS = 4
"""Columns that a frame takes, and lines, two of them empty space that is worth more when there are few."""
_FRAMED_WIDTH, _FRAMED_HEIGHT = 60, 16
"""A smaller terminal gets no frame."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the view has counted itself: tokens per second, and policy → its last rewards."""

    seconds: float
    generated: float
    trained: float
    rewards: Mapping[str, Sequence[float]]


class Picture:
    """Draws for a console, whose size may change between two pictures."""

    def __init__(self, config: RunConfig, directory: Path | None, console: Console) -> None:
        self._config, self._console = config, console
        self._starting = Starting(config)
        self._folders = [] if directory is None else _ways_to_write(directory)

    def of(self, status: Status, processes: Sequence[ProcessState], seen: Seen) -> RenderableType:
        """The run, with what is least important left out if there is no room for all."""
        size = self._console.size
        framed = size.width >= _FRAMED_WIDTH and size.height >= _FRAMED_HEIGHT
        width = size.width - (_BORDERS if framed else 0)
        title = f"{self._config.run.name} {status.state}"
        # Outside the frame, so that it can be copied with nothing else in its line.
        folder = next((path for path in self._folders if cell_len(path) <= size.width), "")
        room = size.height - (4 if framed else 3)
        parts = self._fitting(list(self._parts(status, processes, seen, width)), width, room)
        body = (
            Panel(Group(*parts), title=Text(title, style="bold"), title_align="left")
            if framed
            else Group(Text(title, style="bold", no_wrap=True, overflow="ellipsis"), *parts)
        )
        return Group(body, Text(folder, style="dim"))

    def _parts(
        self, status: Status, processes: Sequence[ProcessState], seen: Seen, width: int
    ) -> Iterator[tuple[float, RenderableType]]:
        """The parts from top to bottom; those with the largest number are left out first."""
        start = self._starting.of(status, processes)
        yield 0, self._progress(status, seen, start)
        if start is not None and start.reading:
            yield 0.5, Text(str(start), no_wrap=True, overflow="ellipsis")
        yield 1, self._policies(status, seen, width)
        yield 3, Text(_flowed(list(self._flow(status, seen)), " · ", width))
        if reasons := "\n".join(_rejected(status)):
            yield 2, Text(reasons, no_wrap=True, overflow="ellipsis")
        if lines := "\n".join(_sampled(status)):
            yield 6, Text(lines, no_wrap=True, overflow="ellipsis")
        if status.samples:
            yield 7, _sample(status, width)
        if waits := [wait for wait in status.waits if wait.since_s >= _SHORTEST_WAIT_S]:
            longest = sorted(waits, key=lambda wait: -wait.since_s)[:_KEPT_WAITS]
            yield 5, Text("\n".join(map(str, longest)), style="dim")
        yield 4, _services(status, processes, width)

    def _fitting(
        self, parts: list[tuple[float, RenderableType]], width: int, room: int
    ) -> list[RenderableType]:
        heights = {rank: self._height(part, width) for rank, part in parts}
        while sum(heights.values()) > room and len(heights) > 2:
            del heights[max(heights)]
        return [part for rank, part in parts if rank in heights]

    def _height(self, part: RenderableType, width: int) -> int:
        options = self._console.options.update(width=width)
        return len(self._console.render_lines(part, options, pad=False))

    def _progress(self, status: Status, seen: Seen, start: StartProgress | None) -> Table:
        """The bar of the steps; before the first of them that of the start."""
        total = self._config.run.steps
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(no_wrap=True)
        table.add_column(ratio=1)
        table.add_column(no_wrap=True, justify="right")
        left = "" if status.eta_s is None or status.ended else f", {duration(status.eta_s)} left"
        bar = ProgressBar(total=total, completed=status.steps)
        what = f"step {status.steps}/{total}"
        if start is not None:
            bar = ProgressBar(total=1.0, completed=start.share)
            what, left = f"starting {start.ready}/{start.services}", ""
        table.add_row(what, bar, f"{duration(seen.seconds)}{left}")
        return table

    def _policies(self, status: Status, seen: Seen, width: int) -> RenderableType:
        """A row for each policy, or where that is too wide its figures in as many lines as they need."""
        figures = {
            name: self._figures(name, policy, status) for name, policy in status.policies.items()
        }
        titles = list(next(iter(figures.values()), {}))
        columns = [[title, *(row[title] for row in figures.values())] for title in titles]
        used = sum(max(map(cell_len, column)) + 1 for column in columns)
        if used > width:
            lines = (
                [f"{title} {text}".strip() for title, text in row.items()]
                for row in figures.values()
            )
            return Text("\n".join(_flowed(line, " · ", width) for line in lines))
        room = min(_MOST_SPARKS, width - used - 1)
        sparks = titles.index("reward") if room >= _FEWEST_SPARKS and titles else -1
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
        for index, title in enumerate(titles):
            table.add_column(title, no_wrap=True, style=_STYLES.get(title, ""))
            if index == sparks:
                table.add_column("", no_wrap=True, style="green")
        for name, row in figures.items():
            cells = [Text(text) for text in row.values()]
            if sparks >= 0:
                cells.insert(sparks + 1, Text(sparkline(list(seen.rewards[name])[-room:])))
            table.add_row(*cells)
        return table

    def _figures(self, name: str, policy: PolicyStatus, status: Status) -> dict[str, str]:
        """Title → figure."""
        held_out = [
            a for entry in status.eval.history if (a := entry.accuracy_of(name)) is not None
        ]
        wait = policy.trainer_wait_fraction
        gap = {"gap": probe_gap(policy.metrics).removeprefix(" gap ") or "–"}
        return {
            "policy": name,
            "version": str(max(policy.version, 0)),
            "reward": number(policy.reward),
            "held-out": number(held_out[-1] if held_out else None),
            "loss": number(policy.metrics.get("loss"), 4),
            "grad": number(policy.metrics.get("grad_norm")),
            **(gap if self._config.run.probe_every > 0 else {}),
            f"stale ≤{self._config.run.max_staleness}": _staleness(policy),
            "waits": "–" if wait is None else f"{wait:.0%}",
        }

    def _flow(self, status: Status, seen: Seen) -> Iterator[str]:
        tasks = status.tasks
        yield f"rollout {count(seen.generated)} tokens/s"
        yield f"training {count(seen.trained)} tokens/s"
        several = len(status.policies) > 1
        for name, policy in status.policies.items():
            whose = f"{name} " if several else "sequences: "
            yield f"{whose}{policy.buffered} buffered + {policy.in_flight:.0f} in flight"
        yield f"prompts: {tasks.accepted} used, {tasks.rejected} rejected"
        if bad := tasks.failed + tasks.set_aside:
            yield f"{bad} failed"


_STYLES = {"reward": "bold green", "held-out": "bold cyan"}


def _ways_to_write(directory: Path) -> list[str]:
    """The path as a person would type it, and the name, which `--run` takes too."""
    whole = directory.absolute()
    return [min(str(whole), os.path.relpath(whole), key=len), whole.name]


def _flowed(parts: Sequence[str], between: str, width: int) -> str:
    """The parts in as few lines as hold them, broken between two of them only."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]}{between}{part}" if lines else part
        if lines and cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return "\n".join(lines)


def _staleness(policy: PolicyStatus) -> str:
    """Mean and largest over the trained sequences."""
    total = sum(policy.staleness.values())
    if not total:
        return "–"
    mean = sum(int(value) * rows for value, rows in policy.staleness.items()) / total
    return f"{mean:.1f} max {policy.max_staleness_seen}"


def _rejected(status: Status) -> Iterator[str]:
    """For each policy of which groups were rejected, how many and the most frequent reason."""
    several = len(status.policies) > 1
    for name, policy in status.policies.items():
        if told := rejections(policy.groups_accepted, policy.rejected, most=1):
            yield f"{name}: {told}" if several else told


def _sampled(status: Status) -> Iterator[str]:
    """What the groups of a step and the episodes of a batch say, of each policy."""
    for name, policy in status.policies.items():
        who = f"{name} " if len(status.policies) > 1 else ""
        if groups := sampled(policy):
            yield f"{who}sampled: {groups}"
        if episodes := episode_metrics(policy, _KEPT_METRICS):
            yield f"{who}episodes: {episodes}"


def _sample(status: Status, width: int) -> Text:
    """What the model was asked last, and what it said."""
    sample = status.samples[-1]
    reward = f" → reward {sample.rewards[0]:.2f}" if sample.rewards else ""
    said = _cut(sample.said, width - len("says: ") - len(reward))
    asked = _cut(sample.asked, width - len("asked: "))
    lines = [f"asked: {asked}"] if asked else []
    text = "\n".join([*lines, f"says: {said}{reward}"])
    return Text(text, style="italic", no_wrap=True, overflow="ellipsis")


def _cut(text: str, most: int) -> str:
    """One line of ``text``; of a long one the beginning and the end, where an answer is."""
    line = " ".join(text.split())
    half = max(most - 3, 10) // 2
    return line if len(line) <= most else f"{line[:half]} … {line[-half:]}"


def _services(status: Status, processes: Sequence[ProcessState], width: int) -> Text:
    known = {raas.name: raas for raas in status.raas}
    line = Text()
    for state in processes:
        each = Text()
        ok = state.exit_code in (None, 0)
        each.append("● " if ok else "✗ ", style="green" if ok else "red")
        each.append(state.name)
        if (raas := known.get(state.name)) is not None:
            versions = ",".join(str(version) for version in raas.serving.values()) or "–"
            each.append(f" serves {versions}, {raas.running} running", style="dim")
            if raas.set_aside:
                each.append(" set aside", style="yellow")
            elif raas.state not in ("", "alive"):
                each.append(f" {raas.state}", style="yellow")
        if state.stopped:
            each.append(" stopped", style="yellow")
        if state.restarts:
            each.append(f" ({state.restarts} restarts)", style="yellow")
        if line:
            last = line.plain.rpartition("\n")[2]
            line.append("  " if cell_len(last) + 2 + each.cell_len <= width else "\n")
        line.append_text(each)
    return line


def sparkline(values: Sequence[float]) -> str:
    """The values as a line of blocks between their least and largest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(_SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_SPARKS[round((value - low) * scale)] for value in values)
