"""A run as a picture that moves, on a terminal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from astraflow_core.config.models import RunConfig
from astraflow_core.launch.figures import Rates, count, duration, number, probe_gap
from astraflow_core.launch.status import PolicyStatus, Status
from astraflow_core.protocols.launcher import ProcessState

_KEPT_WAITS = 6
_MOST_SPARKS = 40
_OTHER_COLUMNS = 64
_SPARKS = "▁▂▃▄▅▆▇█"


class LiveView:
    """Drawn anew at each :meth:`show`, by the caller's thread only. Messages scroll by above it."""

    def __init__(self, config: RunConfig, stream: TextIO) -> None:
        self._config = config
        self._probes = config.run.probe_every > 0
        self._console = Console(file=stream)
        self._rates = Rates()
        self._rewards: dict[str, deque[float]] = {
            name: deque(maxlen=_MOST_SPARKS) for name in config.policies
        }
        self._updates: dict[str, int] = {}
        self._began = time.monotonic()
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._live.start()

    def show(self, status: Status, processes: Sequence[ProcessState]) -> None:
        """Draw the newest state."""
        now = time.monotonic()
        self._rates.update(now, status.tokens_generated, status.tokens_trained)
        for name, policy in status.policies.items():
            if policy.reward is not None and self._updates.get(name) != policy.updates:
                self._updates[name] = policy.updates
                self._rewards[name].append(policy.reward)
        parts: list[RenderableType] = [
            self._progress(status, now - self._began),
            self._policies(status),
            self._flow(status),
        ]
        if status.samples:
            parts.append(self._sample(status))
        if status.waits:
            parts.append(self._waits(status))
        parts.append(self._services(status, processes))
        title = f"[bold]{escape(self._config.run.name)}[/bold] {status.state}"
        self._live.update(Panel(Group(*parts), title=title, title_align="left"), refresh=True)

    def say(self, message: str) -> None:
        """Print above the picture."""
        self._console.print(Text(message))

    def close(self) -> None:
        """Leave the last picture on the screen."""
        self._live.stop()

    def _progress(self, status: Status, seconds: float) -> Table:
        total = self._config.run.steps
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(no_wrap=True)
        table.add_column(ratio=1)
        table.add_column(no_wrap=True, justify="right")
        left = "" if status.eta_s is None or status.ended else f", {duration(status.eta_s)} left"
        bar = ProgressBar(total=total, completed=status.steps)
        table.add_row(f"step {status.steps}/{total}", bar, f"{duration(seconds)}{left}")
        return table

    def _policies(self, status: Status) -> Table:
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
        bound = self._config.run.max_staleness
        titles = (
            "policy",
            "version",
            "reward",
            "",
            "held-out",
            "loss",
            "grad",
            *(["gap"] if self._probes else []),
            f"stale ≤{bound}",
            "waits",
        )
        for title in titles:
            table.add_column(title, no_wrap=True)
        sparks = max(0, min(_MOST_SPARKS, self._console.width - _OTHER_COLUMNS))
        for name, policy in status.policies.items():
            held_out = [a for entry in status.evals if (a := entry.accuracy_of(name)) is not None]
            wait = policy.trainer_wait_fraction
            table.add_row(
                name,
                str(max(policy.version, 0)),
                f"[bold green]{number(policy.reward)}[/]",
                f"[green]{sparkline(list(self._rewards[name])[-sparks:] if sparks else [])}[/]",
                f"[bold cyan]{number(held_out[-1] if held_out else None)}[/]",
                number(policy.metrics.get("loss"), 4),
                number(policy.metrics.get("grad_norm")),
                *([probe_gap(policy.metrics).removeprefix(" gap ") or "–"] if self._probes else []),
                self._staleness(policy),
                "–" if wait is None else f"{wait:.0%}",
            )
        return table

    @staticmethod
    def _staleness(policy: PolicyStatus) -> str:
        """Mean and largest over the trained sequences."""
        total = sum(policy.staleness.values())
        if not total:
            return "–"
        mean = sum(int(value) * rows for value, rows in policy.staleness.items()) / total
        return f"{mean:.1f} max {policy.max_staleness_seen}"

    def _flow(self, status: Status) -> Text:
        tasks = status.tasks
        buffers = ", ".join(
            f"{name} {policy.buffered} buffered + {policy.in_flight:.0f} under way"
            if len(status.policies) > 1
            else f"{policy.buffered} buffered + {policy.in_flight:.0f} under way"
            for name, policy in status.policies.items()
        )
        bad = tasks.failed + tasks.set_aside
        parts = [
            f"rollout {count(self._rates.generated)} tokens/s",
            f"training {count(self._rates.trained)} tokens/s",
            f"sequences: {buffers}" if buffers else "",
            f"prompts: {tasks.accepted} used, {tasks.rejected} rejected"
            + (f", {bad} failed" if bad else ""),
        ]
        return Text(" · ".join(part for part in parts if part))

    def _sample(self, status: Status) -> Text:
        """One line of what the model says now."""
        sample = status.samples[-1]
        text = " ".join(sample.texts[0].split()) if sample.texts else ""
        reward = f" → reward {sample.rewards[0]:.2f}" if sample.rewards else ""
        most = max(20, self._console.width - 32)
        shown = text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 2 :]}"
        return Text(f"says: {shown}{reward}", style="italic", no_wrap=True, overflow="ellipsis")

    def _waits(self, status: Status) -> Text:
        longest = sorted(status.waits, key=lambda wait: -wait.since_s)[:_KEPT_WAITS]
        return Text("\n".join(str(wait) for wait in longest), style="dim")

    def _services(self, status: Status, processes: Sequence[ProcessState]) -> Text:
        line = Text()
        known = {raas.name: raas for raas in status.raas}
        for state in processes:
            if line:
                line.append("  ")
            ok = state.exit_code in (None, 0)
            line.append("● " if ok else "✗ ", style="green" if ok else "red")
            line.append(state.name)
            if (raas := known.get(state.name)) is not None:
                versions = ",".join(str(version) for version in raas.serving.values()) or "–"
                line.append(f" serves {versions}, {raas.running} running", style="dim")
                if raas.state not in ("", "alive"):
                    line.append(f" {raas.state}", style="yellow")
            if state.stopped:
                line.append(" stopped", style="yellow")
            if state.restarts:
                line.append(f" ({state.restarts} restarts)", style="yellow")
        return line


def sparkline(values: Sequence[float]) -> str:
    """The values as a line of blocks between their least and largest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(_SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_SPARKS[round((value - low) * scale)] for value in values)
