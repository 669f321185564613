"""Learning curves of runs: their held-out accuracy, update by update, and its cost."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.studies import pictures, records
from bench.support import trees

LOOK_EVERY_S = 1.0


def learned(
    config: Path,
    name: str,
    overrides: Sequence[str] = (),
    until: float = 2.0,
    deadline_s: float = 3600.0,
) -> dict[str, Any]:
    """A run of ``config``: its ``name``, the ``points`` of the evaluation set ``held_out``, each with ``update`` and the
    accuracy ``greedy``, the mean ``rewards`` of the trajectories that each update trained on, and ``cpu_s`` of its processes. It is ended when it is at least ``until`` accurate; above 1, it
    goes on to its last update. :class:`RuntimeError` if it fails. Its output goes to stderr."""
    with tempfile.TemporaryDirectory(prefix="astraflow-bench-") as folder:
        command = [sys.executable, "-m", "astraflow_runtime", "run", str(config), "--no-live"]
        for override in (*overrides, f"run.directory='{folder}'"):
            command += ["--set", override]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        ends, points, cpu_s = time.monotonic() + deadline_s, list[dict[str, float]](), 0.0
        rewards, ended = list[float](), False
        try:
            while not any(point["greedy"] >= until for point in points):
                ended = process.poll() is not None
                cpu_s = max(cpu_s, trees.cpu_s(process.pid))
                lines = _metrics(Path(folder))
                points, rewards = (
                    _points(lines),
                    [round(line["reward"], 4) for line in lines if "reward" in line],
                )
                if ended:
                    break
                if time.monotonic() > ends:
                    raise RuntimeError(f"{config.name} was not done within {deadline_s:g} s")
                time.sleep(LOOK_EVERY_S)
        finally:
            trees.kill(process.pid)
            process.wait()
        if ended and process.returncode != 0:
            raise RuntimeError(f"{config.name} ended with {process.returncode}")
        for file in Path(folder).glob("*/summary.json"):
            cpu_s = json.loads(file.read_text(encoding="utf-8"))["cpu_s"]
    return {"name": name, "points": points, "rewards": rewards, "cpu_s": round(cpu_s, 1)}


def _metrics(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of a file that is written to."""
    text = "".join(file.read_text(encoding="utf-8") for file in folder.glob("*/metrics.jsonl"))
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _points(lines: list[dict[str, Any]]) -> list[dict[str, float]]:
    """What is evaluated so far."""
    found = [line["eval"] for line in lines if "eval" in line]
    pairs = sorted((each["version"], each["sets"]["held_out"]["pass"]) for each in found)
    return [{"update": update, "greedy": accuracy} for update, accuracy in dict(pairs).items()]


def updates_until(accuracy: float, run: dict[str, Any]) -> int:
    """The first update after which ``run`` was seen to be at least that accurate; :class:`RuntimeError` if it never was."""
    for point in run["points"]:
        if point["greedy"] >= accuracy:
            return int(point["update"])
    best = max(point["greedy"] for point in run["points"])
    raise RuntimeError(f"a run of {run['name']} reached {best:.3f}, not {accuracy}")


def record(folder: Path, title: str, runs: records.Runs) -> None:
    """``runs.json``, and ``curves.svg`` with a line for each name of runs."""
    folder.mkdir(parents=True, exist_ok=True)
    records.write(folder, runs)
    names = {run["name"]: run["name"] for run in runs}
    picture = pictures.panels(runs, {title: names}, "update", "updates")
    (folder / "curves.svg").write_text(picture, encoding="utf-8")
