"""Event files, written by tensorboardX: TensorBoard itself is needed only to look at them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from astraflow_contrib_tensorboard.config import TensorBoardTrackerConfig
from astraflow_core.types import ComponentContext, RunInfo
from astraflow_trackers.keys import dotted


class TensorBoardTracker:
    """Implements :class:`astraflow_core.protocols.tracker.Tracker`. A run that is resumed gets a further file in the same folder,
    which TensorBoard shows as one run."""

    def __init__(self, config: TensorBoardTrackerConfig, context: ComponentContext) -> None:
        run = context.run.directory
        self._folder = config.folder / run.name if config.folder else run / "tensorboard"
        self._config = config
        self._last = 0

    def started(self, run: RunInfo, config: Mapping[str, Any]) -> str:
        """Open a file; the config is a text."""
        # Files are named by the second: one begun in the same second would take the place of another.
        number = len(list(self._folder.glob("events*")))
        self._writer = SummaryWriter(
            str(self._folder),
            max_queue=1000,
            flush_secs=self._config.flush_s,
            filename_suffix=f".{number}",
        )
        rows = [f"| `{key}` | {_cell(value)} |" for key, value in dotted(config).items()]
        self._writer.add_text("config", "\n".join(["| key | value |", "|---|---|", *rows]), 0)
        self._writer.flush()
        return str(self._folder)

    def metrics(self, group: str, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """A scalar each."""
        self._last = max(self._last, step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, walltime=time_s)

    def rollouts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """A table of each update, as a text."""
        first = rows[0]
        columns = ("group", "prompt", "completion", "reward")
        lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(_cell(row[name]) for name in columns) + " |" for row in rows]
        self._writer.add_text(
            f"rollouts/{first['policy']}", "\n".join(lines), first["step"], walltime=first["time_s"]
        )

    def ended(self, state: str, summary: Mapping[str, Any], curves: Path | None) -> None:
        """The summary as a text, the curves as an image."""
        self._writer.add_text("summary", f"```\n{json.dumps(summary, indent=2)}\n```", self._last)
        if curves is not None:
            self._add_image("curves", curves.read_bytes())
        self._writer.close()

    def _add_image(self, tag: str, png: bytes) -> None:
        """As it is: ``add_image`` would decode and encode it."""
        width, height = (int.from_bytes(png[i : i + 4], "big") for i in (16, 20))
        image = Summary.Image(height=height, width=width, colorspace=4, encoded_image_string=png)
        summary = Summary(value=[Summary.Value(tag=tag, image=image)])
        self._writer.file_writer.add_event(Event(summary=summary), self._last, time.time())


def _cell(value: Any) -> str:
    """A value in a cell of a Markdown table, which a line break or a bar would end."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text.replace("|", "\\|").replace("\n", "<br>")
