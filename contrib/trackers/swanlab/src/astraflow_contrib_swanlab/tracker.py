"""SwanLab, through its library."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import swanlab

from astraflow_contrib_swanlab.config import SwanlabTrackerConfig
from astraflow_core.types import ComponentContext, RunInfo
from astraflow_trackers.keys import dotted
from astraflow_trackers.records import ROLLOUT_COLUMNS

ID = "run_id"
_STATES = {"finished": "success", "stopped": "aborted", "killed": "aborted"}
_TEXTS = ("prompt", "completion")


class SwanlabTracker:
    """Implements :class:`astraflow_core.protocols.tracker.Tracker`. A resumed run keeps its id."""

    def __init__(self, config: SwanlabTrackerConfig, context: ComponentContext) -> None:
        self._config, self._own = config, context.directory
        self._steps = 0

    def started(self, run: RunInfo, config: Mapping[str, Any]) -> str:
        """Begin the run, or continue it."""
        own, file = self._config, self._own / ID
        if not file.exists():
            file.write_text(secrets.token_hex(8), encoding="utf-8")
        folder = own.folder or self._own
        folder.mkdir(parents=True, exist_ok=True)
        quiet = dict.fromkeys(("hardware", "runtime", "requirements", "git", "swanlab"), False)
        self._run = swanlab.init(
            id=file.read_text(encoding="utf-8"),
            resume="allow",
            project=own.project,
            workspace=own.workspace,
            mode=own.mode,
            name=own.name or run.directory.name,
            group=own.group,
            tags=list(own.tags),
            log_dir=str(folder),
            config=dict(config),
            settings=swanlab.Settings(
                interactive=False,
                probe={**quiet, "hardware": own.system_metrics, "monitor": own.system_metrics},
                terminal={"proxy_type": "none"},
            ),
        )
        if own.mode == "offline":
            return f"{self._run.dir} (offline; `swanlab sync` sends it)"
        return str(self._run.url)

    def metrics(self, group: str, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """A point of each."""
        self._steps = max(self._steps, step)
        self._run.log(dict(values), step=step)

    def rollouts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """A text each, with its figures as the caption."""
        policy, step = rows[0]["policy"], rows[0]["step"]
        texts = [swanlab.Text(_text(row), caption=_caption(row)) for row in rows]
        self._run.log({f"rollouts/{policy}": texts}, step=step)

    def ended(self, state: str, summary: Mapping[str, Any], curves: Path | None) -> None:
        """The figures of the end are values at the last step, and the curves a picture."""
        figures = {k: v for k, v in dotted(summary).items() if isinstance(v, int | float)}
        last: dict[str, Any] = {f"run/{name}": value for name, value in figures.items()}
        if curves is not None:
            last["curves"] = swanlab.Image(str(curves))
        if last:
            self._run.log(last, step=self._steps)
        ending: Any = _STATES.get(state, "crashed")
        self._run.finish(state=ending, error=state if ending == "crashed" else None)


def _text(row: Mapping[str, Any]) -> str:
    return "\n\n".join(f"{name}:\n{row[name]}" for name in _TEXTS)


def _caption(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {row[name]}" for name in ROLLOUT_COLUMNS if name not in _TEXTS)
