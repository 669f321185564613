"""The runs of a folder: which there are, how each stands, and in what their configurations differ."""

from __future__ import annotations

import json
import os
import stat
import threading
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astraflow_contrib_pages.metrics.metric_columns import MetricColumns
from astraflow_core.errors import Refused
from astraflow_runtime.launch.results.config_differences import differing, flatten
from astraflow_runtime.telemetry.printable import printable
from astraflow_wire.redaction import redacted, without_secrets

_MARKS = ("config.toml", "dataflow.json", "summary.json")
_MOST_RUNS = 2000
_MOST_BYTES = 32 << 20
_ENDED = ("finished", "stopped", "failed")


@dataclass(slots=True)
class _Cached:
    stamp: tuple[int, int] = (0, -1)
    value: Any = None


@dataclass(slots=True)
class RunFolder:
    """The directory of one run, and what was read of it."""

    path: Path
    columns: MetricColumns
    _files: dict[str, _Cached] = field(default_factory=dict)
    _shown: tuple[Any, dict[str, Any]] = (None, {})

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.path.name

    def read(self, name: str) -> Any:
        """A JSON or TOML file of it, read anew when it changed; ``None`` if there is none, or none that is whole."""
        file, cached = self.path / name, self._files.setdefault(name, _Cached())
        try:
            found = file.stat()
            if found.st_size > _MOST_BYTES or not stat.S_ISREG(found.st_mode):
                return None
            if cached.stamp != (stamp := (found.st_mtime_ns, found.st_size)):
                text = file.read_text("utf-8")
                cached.value = tomllib.loads(text) if name.endswith(".toml") else _json(text)
                cached.stamp = stamp
        except (OSError, ValueError):
            return None  # shown as missing: a run that was killed, or is writing it
        return cached.value

    @property
    def summary(self) -> dict[str, Any]:
        """``summary.json``, which the launcher writes last."""
        return _table(self.read("summary.json"))

    @property
    def config(self) -> dict[str, Any]:
        """``config.toml``, as it was resolved."""
        return _table(self.read("config.toml"))

    @property
    def shown_config(self) -> dict[str, Any]:
        """The same without its secrets."""
        config, shown = self.config, self._shown
        if shown[0] is not config:
            self._shown = shown = (config, without_secrets(config))
        return shown[1]

    @property
    def state(self) -> str:
        """``running``, ``finished``, ``stopped``, ``failed``, or ``crashed``: neither ended nor alive."""
        if (said := self.summary.get("state")) in _ENDED:
            return str(said)
        if self.launched or self._serving():
            return "running"
        left = _table(self.read("status.json")).get("state")
        return str(left) if left in _ENDED and not self.summary else "crashed"

    @property
    def alive(self) -> bool:
        """Whether it may still change."""
        return self.state == "running"

    @property
    def started(self) -> float:
        """When its configuration was written, in seconds since 1970."""
        for name in _MARKS:
            file = self.path / name
            if file.is_file():
                return file.stat().st_mtime
        return 0.0

    @property
    def launched(self) -> bool:
        """Whether its launcher holds its lock."""
        try:
            return _is_locked((self.path / "launcher.lock").lstat())
        except FileNotFoundError:
            return False

    def _serving(self) -> bool:
        """Whether the process of its dataflow exists, for a run that was started process by process."""
        pid = _table(self.read("dataflow.json")).get("pid")
        if not isinstance(pid, int) or pid <= 0:
            return False
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            return True  # another user's
        return b"astraflow" in _command_line(pid)

    def row(self) -> dict[str, Any]:
        """The row of the run in the table of runs."""
        summary, run = self.summary, _table(self.config.get("run"))
        state = self.state
        if not summary:
            self.columns.look(whole=False)
        steps = summary.get("steps", self.columns.steps)
        newest = {} if summary else self.columns.last()
        reward = summary.get("reward_last", _first(newest, "reward"))
        accuracy = summary.get("eval_last", _newest_accuracy(self.columns.evaluations))
        error = summary.get("error") or ""
        return {
            "name": self.name, "state": state, "started": self.started,
            "steps": steps, "steps_planned": summary.get("steps_planned", run.get("steps")),
            "reward": reward, "accuracy": accuracy,
            "tokens": summary.get("tokens_generated", _first(newest, "tokens_generated")),
            "wall_s": summary.get("wall_s"),
            "policies": list(_table(self.config.get("policies"))),
            "error": printable(redacted(str(error).splitlines()[0])) if error else "",
        }  # fmt: skip


class RunsFolder:
    """The runs in ``root``; with ``only``, none but the run of that name."""

    def __init__(self, root: Path, only: str | None = None) -> None:
        self.root, self.only = root.resolve(), only
        self._lock = threading.Lock()
        self._runs: dict[str, RunFolder] = {}

    def __iter__(self) -> Iterator[RunFolder]:
        """All of them, those that were started last first."""
        with self._lock:
            names = [self.only] if self.only else sorted(self._names())
            found = [self._of(name) for name in names[:_MOST_RUNS] if self._is_run(name)]
        return iter(sorted(found, key=lambda run: (-run.started, run.name)))

    def run(self, name: str) -> RunFolder:
        """The run of this name; ``Refused`` (404) if there is none."""
        with self._lock:
            if self.only not in (None, name) or not self._is_run(name):
                raise Refused(404, f"there is no run {name[:200]!r} in {self.root}")
            return self._of(name)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.root)
        except FileNotFoundError:
            return []

    def _is_run(self, name: str) -> bool:
        if name in ("", ".", "..") or "/" in name or "\0" in name or not _is_text(name):
            return False
        folder = self.root / name
        if folder.is_symlink():  # it could lead out of the folder
            return False
        return any((folder / mark).is_file() for mark in _MARKS)

    def _of(self, name: str) -> RunFolder:
        folder = self.root / name
        return self._runs.setdefault(name, RunFolder(folder, MetricColumns(folder)))

    def table(self) -> dict[str, Any]:
        """All runs, each with the keys of its configuration that not all of them have alike."""
        runs = list(self)
        flat = {run.name: flatten(run.shown_config) for run in runs if run.config}
        keys = differing(flat)
        rows = []
        for run in runs:
            own = flat.get(run.name, {})
            rows.append({**run.row(), "differs": {k: own[k] for k in keys if k in own}})
        return {"root": str(self.root), "runs": rows, "keys": keys}


def _json(text: str) -> Any:
    """What ``text`` says, without numbers that JSON does not have, such as NaN: browsers refuse them."""
    return json.loads(text, parse_constant=lambda name: None)


def _is_text(name: str) -> bool:
    """Whether a file's name is UTF-8, as names in addresses are."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _first(newest: Mapping[str, Mapping[str, float]], name: str) -> float | None:
    return next((figures[name] for figures in newest.values() if name in figures), None)


def _newest_accuracy(evaluations: list[dict[str, Any]]) -> float | None:
    given = (
        [v for v in evaluations[-1]["accuracy"].values() if v is not None] if evaluations else []
    )
    return sum(given) / len(given) if given else None


def _is_locked(file: os.stat_result) -> bool:
    """Whether a process has locked a file (``flock``), without a try to lock it: a launcher that begins in that moment would
    be refused."""
    locks = Path("/proc/locks")
    if not locks.exists():
        return False
    place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    lines = (line.split() for line in locks.read_text().splitlines())
    return any("FLOCK" in line and place in line for line in lines)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b"astraflow"  # a system without /proc: believed
    except OSError:
        return b""
