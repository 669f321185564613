"""Runs of ``game.toml``."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

CONFIG = Path(__file__).with_name("game.toml")


@dataclass(frozen=True, slots=True)
class Curve:
    """Share of held-out levels that are won, by update; CPU seconds of all processes of the run."""

    won: dict[int, float]
    cpu_s: float
    tokens_trained: int


def played(use: str, seed: int, overrides: tuple[str, ...] = ()) -> Curve:
    """A run with another algorithm and seed, which must not fail; its output goes to stderr."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "astraflow_runtime", "run", str(CONFIG), "--no-live"]
        keys = (f"policies.player.algorithm.use={use}", f"run.seed={seed}", *overrides)
        for key in (*keys, f"run.directory='{folder}'"):
            command += ["--set", key]
        subprocess.run(command, check=True, stdout=sys.stderr, timeout=1800)
        (file,) = Path(folder).glob("*/summary.json")
        summary = json.loads(file.read_text(encoding="utf-8"))
        lines = file.with_name("metrics.jsonl").read_text(encoding="utf-8").splitlines()
        found = [line["eval"] for line in map(json.loads, lines) if "eval" in line]
        won = {each["version"]: each["sets"]["held_out"]["pass"] for each in found}
        return Curve(won, summary["cpu_s"], summary["tokens_trained"])
