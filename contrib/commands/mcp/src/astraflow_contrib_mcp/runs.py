"""Which run a tool means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow_core.errors import UserError
from astraflow_core.suggestions import did_you_mean
from astraflow_runtime.cli.run_directory import RUNS, is_run, newest_first

if TYPE_CHECKING:
    from astraflow_wire.http.client import SyncClient

_MOST_QUOTED = 100


class Runs:
    """The runs that a server shows: those in ``runs/`` of the working directory, or only the one in ``only``."""

    def __init__(self, only: Path | None = None) -> None:
        self._only = only
        self._root = Path(RUNS).resolve()

    def all(self) -> list[Path]:
        """The directories of the runs, newest first."""
        if self._only is not None:
            return [self._only]
        return [self._root / folder.name for folder in newest_first() if not folder.is_symlink()]

    def find(self, name: str) -> Path:
        """The directory of a run by its name, which is no path; the newest one without a name, preferably one that has
        not ended. :class:`UserError` if there is none."""
        known = self.all()
        if not name:
            going = [run for run in known if not (run / "summary.json").exists()]
            if not known:
                raise UserError(
                    f"there is no run in {self._root}; start one there with `astraflow run FILE`"
                )
            return (going or known)[0]
        found = next((run for run in known if run.name == name and is_run(run)), None)
        if found is None:
            names = [run.name for run in known]
            hint = did_you_mean(name[:_MOST_QUOTED], names) or ";"
            raise UserError(
                f"there is no run {name[:_MOST_QUOTED]!r}{hint} the tool list_runs lists the runs of this server"
            )
        return found

    @contextmanager
    def asking(self, name: str) -> Iterator[SyncClient]:
        """The dataflow of a running run."""
        from astraflow_runtime.cli.running.asking import asking

        with asking(str(self.find(name))) as client:
            yield client

    @staticmethod
    def check_token(run: Path) -> None:
        """:class:`UserError` if the run is not running, or its token cannot be read."""
        from astraflow_runtime.cli.running.secrets import running_dataflow

        running_dataflow(str(run), None, None)
