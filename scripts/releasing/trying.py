"""Use the release as a new user would: list plugins, run the doctor, train for three updates."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import wheels
from installers import Failure

QUICKSTART = (
    "run.steps=3", "policies.solver.batch_sequences=64", "eval.sets.held_out.size=8", "raas.replicas=1",
)  # fmt: skip
DEADLINE_S = 900.0

# Run by the interpreter of the environment.
_ENTRY_POINTS = """
from importlib.metadata import distributions
for each in distributions():
    if each.metadata["Name"].startswith("astraflow-"):
        for point in each.entry_points:
            point.load()
"""


def load_entry_points(python: Path) -> None:
    """Import what the entry points of our distributions name."""
    wheels.execute(str(python), "-c", _ENTRY_POINTS)


def list_plugins(python: Path) -> int:
    """How many plugins the command lists; a :class:`Failure` names one that cannot be used."""
    text = wheels.execute(str(python.with_name("astraflow")), "plugins", "--json")
    plugins = json.loads(text)
    broken = [f"{p['name']}: {p['problem']}" for p in plugins if p["state"] != "healthy"]
    if broken:
        raise Failure("plugins that cannot be used:\n  " + "\n  ".join(broken))
    return len(plugins)


def ask_doctor(python: Path, config: Path, work: Path) -> None:
    """``astraflow doctor --static`` of a config."""
    command = (str(python.with_name("astraflow")), "doctor", str(config), "--static")
    wheels.execute(*command, cwd=work, XDG_CACHE_HOME=str(work / "cache"))


def train(python: Path, config: Path, work: Path, overrides: Collection[str]) -> int:
    """Run a config to its end; returns the updates that it made."""
    arguments = [part for override in overrides for part in ("--set", override)]
    text = wheels.execute(
        *(str(python.with_name("astraflow")), "run", str(config), "--json", *arguments),
        cwd=work,
        timeout=DEADLINE_S,
        XDG_CACHE_HOME=str(work / "cache"),
        OMP_NUM_THREADS="1",
    )
    summary = json.loads(text[text.index("{") :])
    if summary["state"] != "finished" or summary["failed"] or summary["lost"]:
        raise Failure(f"{config.name} did not go well: {json.dumps(summary)[:1000]}")
    return int(summary["steps"])
