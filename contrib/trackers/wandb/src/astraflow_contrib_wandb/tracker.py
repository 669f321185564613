"""Weights & Biases, through its library."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb

from astraflow_contrib_wandb.config import WandbTrackerConfig
from astraflow_core.types import ComponentContext, RunInfo
from astraflow_trackers.keys import dotted
from astraflow_trackers.records import ROLLOUT_COLUMNS

ID = "run_id"
_ENDED_WELL = ("finished", "stopped")


class WandbTracker:
    """Implements :class:`astraflow_core.protocols.tracker.Tracker`. Each group of metrics has its own step, ``GROUP/step``,
    since W&B refuses steps that go back and those of several policies are mixed. A resumed run keeps its id."""

    def __init__(self, config: WandbTrackerConfig, context: ComponentContext) -> None:
        self._config, self._own = config, context.directory
        self._groups: set[str] = set()
        self._tables: set[str] = set()

    def started(self, run: RunInfo, config: Mapping[str, Any]) -> str:
        """Begin the run, or continue it."""
        own, file = self._config, self._own / ID
        if not file.exists():
            file.write_text(secrets.token_hex(8), encoding="utf-8")
        folder = own.folder or self._own
        folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            disable_code=True,
            x_disable_stats=not own.system_metrics,
        )
        self._run = wandb.init(
            id=file.read_text(encoding="utf-8"),
            resume="allow",
            project=own.project,
            entity=own.entity,
            mode=own.chosen_mode,
            name=own.name or run.directory.name,
            group=own.group,
            tags=own.tags,
            dir=str(folder),
            config=dict(config),
            settings=settings,
        )
        if self._run.settings.mode == "offline":
            return f"{Path(self._run.dir).parent} (offline; `wandb sync` sends it)"
        return str(self._run.url or "")

    def metrics(self, group: str, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """One row of the history."""
        if group not in self._groups:
            self._groups.add(group)
            self._run.define_metric(f"{group}/step", hidden=True)
            self._run.define_metric(f"{group}/*", step_metric=f"{group}/step")
        self._run.log({**values, f"{group}/step": step, f"{group}/time_s": time_s})

    def rollouts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """A table of each update."""
        policy, step = rows[0]["policy"], rows[0]["step"]
        cells = [[_cell(row[name]) for name in ROLLOUT_COLUMNS] for row in rows]
        table = wandb.Table(columns=list(ROLLOUT_COLUMNS), data=cells)
        self._run.log({f"rollouts/{policy}": table, f"{policy}/step": step})

    def ended(self, state: str, summary: Mapping[str, Any], curves: Path | None) -> None:
        """The figures of the end are the summary; the picture of the curves is a file of the run."""
        figures = {k: v for k, v in dotted(summary).items() if isinstance(v, int | float | str)}
        self._run.summary.update({f"run/{name}": value for name, value in figures.items()})
        if curves is not None:
            self._run.save(str(curves), base_path=str(curves.parent), policy="now")
        code = 0 if state in _ENDED_WELL else 1
        self._run.finish(exit_code=code)
        wandb.teardown(exit_code=code)  # waits for the process that writes and sends


def _cell(value: Any) -> Any:
    return str(tuple(value)) if isinstance(value, list | tuple) else value
