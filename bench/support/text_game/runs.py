"""Runs of a text game, through all services."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

CONFIG = Path(__file__).with_name("game.toml")


@dataclass(frozen=True, slots=True)
class Curve:
    """Share of held-out levels that are won, by update; CPU seconds of all processes of the run; the mean reward of the
    games that were trained on, over all updates."""

    won: dict[int, float]
    cpu_s: float
    tokens_trained: int
    reward: float

    @classmethod
    def read(cls, run: Path) -> Curve:
        """What the directory of a finished run says; its set of held-out levels is named ``held_out``."""
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        text = (run / "metrics.jsonl").read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines()]
        found = [line["eval"] for line in lines if "eval" in line]
        won = {each["version"]: each["sets"]["held_out"]["pass"] for each in found}
        reward = statistics.fmean(line["reward"] for line in lines if "reward" in line)
        return cls(won, summary["cpu_s"], summary["tokens_trained"], reward)


def played(*overrides: str, config: Path = CONFIG) -> Curve:
    """A run of ``config`` with ``overrides``, which must not fail; its output goes to stderr."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "astraflow_runtime", "run", str(config), "--no-live"]
        for key in (*overrides, f"run.directory='{folder}'"):
            command += ["--set", key]
        subprocess.run(command, check=True, stdout=sys.stderr, timeout=1800)
        (file,) = Path(folder).glob("*/summary.json")
        return Curve.read(file.parent)
