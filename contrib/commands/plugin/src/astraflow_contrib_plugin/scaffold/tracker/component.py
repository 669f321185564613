"""The tracker ``sample_thing``."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from pydantic import Field

from astraflow_core.config.models import ConfigModel
from astraflow_core.protocols.tracker import Record
from astraflow_core.types import ComponentContext, RunInfo

TABLES = """
CREATE TABLE IF NOT EXISTS run (name TEXT, config TEXT, state TEXT, summary TEXT);
CREATE TABLE IF NOT EXISTS metrics (name TEXT, step INTEGER, time_s REAL, value REAL, PRIMARY KEY (name, step));
"""


class SampleThingConfig(ConfigModel):
    """``[trackers.NAME] use = "sample_thing"``"""

    file: str = Field("metrics.sqlite", description="Database file, in the directory of the run.")
    wait_s: float = Field(
        5.0, ge=0, description="Longest time to wait for someone who reads the database."
    )


class SampleThing:
    """Writes the metrics of a run into an SQLite database, one row for each name and step."""

    def __init__(self, config: SampleThingConfig, context: ComponentContext) -> None:
        self._file = context.run.directory / config.file
        self._wait_s = config.wait_s

    def started(self, run: RunInfo, config: Record) -> str:
        """Make the tables, unless the run continues."""
        with closing(self._open()) as database, database:
            database.executescript(TABLES)
            database.execute("DELETE FROM run")
            text = json.dumps(config, default=str)
            database.execute("INSERT INTO run VALUES (?, ?, 'active', NULL)", (run.name, text))
        return str(self._file)

    def metrics(self, group: str, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """One transaction for each step."""
        rows = [(name, step, time_s, value) for name, value in values.items()]
        with closing(self._open()) as database, database:
            database.executemany("INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?)", rows)

    def ended(self, state: str, summary: Record, curves: Path | None) -> None:
        """Note how the run ended."""
        text = json.dumps(summary, default=str)
        with closing(self._open()) as database, database:
            database.execute("UPDATE run SET state = ?, summary = ?", (state, text))

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file, timeout=self._wait_s)
