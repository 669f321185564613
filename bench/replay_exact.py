"""A replayed run: are its batches and weights the same, and how much faster is it?

The quickstart with fewer updates, one thread and a trainer that notes a digest of every batch that it is given, as arrays. Then
`astraflow replay` of that run. `batches_equal` and `weights_equal` are 1 if the trainer was given the same batches in the same
order, byte for byte, and if all published versions and the model that is left have the same bytes. `speed_over_recorded`: seconds
between the first and the last update of the run / the same of the replay; `command_over_recorded` compares the whole commands,
most of which is the start of processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.quickstart import EXAMPLES

STEPS, QUICK_STEPS = 40, 10
DEADLINE_S = 900.0
NOTING = "bench.support.noting_trainer:NotingTrainer"


def measure(quick: bool) -> dict[str, float]:
    """Record, replay, compare."""
    steps = QUICK_STEPS if quick else STEPS
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        recorded_s = _command(
            "run",
            str(EXAMPLES / "quickstart.toml"),
            *_set(f"run.steps={steps}"),
            *_set(f"run.directory={json.dumps(str(base))}"),
            *_set(f"policies.solver.trainer.use={json.dumps(NOTING)}"),
            *_set("eval.every=1000000"),
        )
        (run,) = base.iterdir()
        replayed_s = _command("replay", str(run))
        (replay,) = (run / "replays").iterdir()
        told = json.loads((replay / "replay.json").read_text())["policies"]["solver"]
        noted = [(each / "noted.txt").read_text() for each in (run, replay)]
        model = Path("models", "solver", "model.safetensors")
        models = [(each / model).read_bytes() for each in (run, replay)]
        exact = told["weights_differ_from"] is None and told["compared_versions"] == steps + 1
        return {
            "batches_equal": float(noted[0] == noted[1] and noted[0].count("\n") == steps),
            "weights_equal": float(exact and models[0] == models[1]),
            "speed_over_recorded": _training_s(run) / _training_s(replay),
            "command_over_recorded": recorded_s / replayed_s,
            "steps": float(steps),
            "run_s": recorded_s,
            "replay_s": replayed_s,
        }


def _set(text: str) -> tuple[str, str]:
    return "--set", text


def _training_s(directory: Path) -> float:
    """Seconds from the first update to the last."""
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    times = [line["time"] for line in lines if "step" in line]
    return float(times[-1] - times[0])


def _command(*arguments: str) -> float:
    """Run `astraflow`; wall seconds."""
    root = Path(__file__).parent.parent
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "astraflow_runtime", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        check=True,
        stdout=sys.stderr,
        timeout=DEADLINE_S,
    )
    return time.monotonic() - began
