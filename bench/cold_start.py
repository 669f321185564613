"""How long does a run take from its command to its first update, and which process spends how much on it?

``quickstart`` is the example as it is shipped, ``table`` a run of tables in the place of models, which is what most tests of
whole runs start. ``KIND_s`` are wall seconds from the command until ``metrics.jsonl`` has the first update, ``KIND_cpu_s`` the
CPU seconds of all its processes at that moment, ``KIND_ROLE_cpu_s`` those of one process of a role: the launcher with its dry
call, the dataflow, a trainer, a RaaS without its engine host (means, where there are several), an engine host; ``imports``: what the others
are forked from. Then the run is killed.

``ROLE_imports_cpu_s`` are the CPU seconds that a bare interpreter takes to import what such a process does, without the garbage
collector, as they do: ``torch`` is what trainer and engine host of the quickstart add to that, the model's class included.
``discovery_cpu_s``: finding the installed plugins, which each process does once. All are medians. ``others_cores``: how many
cores other work on the machine took meanwhile, on average.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from astraflow_testing.runs import TABLE_RUN
from bench.quickstart import EXAMPLES
from bench.support import trees
from bench.support.processes import end_of

RUNS = 3
POLL_S, DEADLINE_S = 0.02, 240.0
ROLES = {
    "host": "astraflow_engine_host.main",
    "imports": "astraflow_runtime.forking.server",
    "dataflow": "dataflow",
    "trainer": "trainer",
    "raas": "raas",
    "launcher": "run",
}
"""Roles, and the word of their command line by which they are known; the first that fits."""
TORCH = "torch"
IMPORTS = {
    "launcher": "astraflow_runtime.launch.run",
    "dataflow": "astraflow_runtime.dataflow.main",
    "trainer": "astraflow_runtime.trainer.main",
    "raas": "astraflow_runtime.raas.main",
    "host": "astraflow_engine_host.main",
    "discovery": "astraflow_core.catalog",
    TORCH: "astraflow_core.types, numpy",
}
"""What a process of a role imports first."""
AFTER = {
    "discovery": "astraflow_core.catalog.Catalog.discover()",
    TORCH: "import astraflow_plugin_torch_trainer.trainer; import astraflow_plugin_torch_engine.engine",
}
"""What is measured after that, instead of it."""
PROGRAM = """
import gc, time
gc.disable()
import {first}
before = time.process_time()
{then}
print(time.process_time() - before if {then!r} else time.process_time())
"""


def measure(quick: bool) -> dict[str, float]:
    """Both runs and all imports three times in turn; quick: the table and the light imports once."""
    kinds = ["table"] if quick else ["quickstart", "table"]
    imports = [name for name in IMPORTS if not (quick and name == TORCH)]
    machine, own, began = trees.machine_cpu_s(), sum(os.times()[:4]), time.monotonic()
    rounds: list[dict[str, float]] = []
    for _ in range(1 if quick else RUNS):
        figures: dict[str, float] = {}
        for kind in kinds:
            figures |= {f"{kind}_{name}": value for name, value in first_update(kind).items()}
        for name in imports:
            suffix = "imports_cpu_s" if name in ROLES or name == TORCH else "cpu_s"
            figures[f"{name}_{suffix}"] = imported(IMPORTS[name], AFTER.get(name, ""))
        rounds.append(figures)
    others = trees.machine_cpu_s() - machine - (sum(os.times()[:4]) - own)
    result = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    return {**result, "runs": len(rounds), "others_cores": others / (time.monotonic() - began)}


def first_update(kind: str) -> dict[str, float]:
    """``s``, ``cpu_s`` and ``ROLE_cpu_s`` of one run until its first update; :class:`RuntimeError` if it ends before."""
    with tempfile.TemporaryDirectory(prefix="astraflow-bench-") as folder:
        file = EXAMPLES / "quickstart.toml"
        if kind == "table":
            file = Path(folder) / "table.toml"
            file.write_text(TABLE_RUN, encoding="utf-8")
        command = [sys.executable, "-m", "astraflow_runtime", "run", str(file), "--no-live"]
        command += ["--set", f"run.directory='{folder}/runs'"]
        began = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        try:
            while not _updated(Path(folder)):
                if process.poll() is not None or time.monotonic() - began > DEADLINE_S:
                    raise RuntimeError(f"no update of the {kind} (exit code {process.returncode})")
                time.sleep(POLL_S)
            wall = time.monotonic() - began
            found = _by_role(process.pid)
        finally:
            trees.kill(process.pid)
            end_of(process)
    found["imports"] = [
        sum(found.get("imports", []))
    ]  # RaaS have servers of their own, which import nothing
    means = {f"{role}_cpu_s": statistics.mean(each) for role, each in found.items()}
    return {"s": wall, "cpu_s": sum(map(sum, found.values())), **means}


def imported(first: str, then: str) -> float:
    """CPU seconds of an interpreter that imports ``first``, its own start included, or of ``then`` after that."""
    program = PROGRAM.format(first=first, then=then)
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120
    )
    return float(done.stdout)


def _updated(folder: Path) -> bool:
    for file in folder.glob("runs/*/metrics.jsonl"):
        with contextlib.suppress(json.JSONDecodeError):  # a line that is being written
            return any("step" in json.loads(line) for line in file.read_text().splitlines())
    return False


def _by_role(root: int) -> dict[str, list[float]]:
    """CPU seconds of each process of the tree, by role; what a process is no role's counts for the launcher."""
    found: dict[str, list[float]] = {role: [] for role in ROLES}
    rest = 0.0
    for process in trees.tree(root).values():
        role = next((name for name, word in ROLES.items() if word in process.words), None)
        if role is None:
            rest += process.cpu_s
        else:
            found[role].append(process.cpu_s)
    found["launcher"][0] += rest
    return {role: each for role, each in found.items() if each}
