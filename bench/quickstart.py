"""The main job, `astraflow run examples/quickstart.toml`: what it learns and what it costs."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLE = Path(__file__).parent.parent / "examples" / "quickstart.toml"
FIELDS = (
    "setup_s", "wall_s", "cpu_s", "reward_first", "reward_last", "eval_first", "eval_last",
    "tokens_generated", "tokens_trained", "max_staleness_seen", "trainer_wait_fraction",
)  # fmt: skip


def measure(quick: bool) -> dict[str, float]:
    """Seeds 0, 1 and 2 (only 0 if ``quick``); the worst of them in each field that has a bound."""
    summaries = [_run(seed) for seed in ([0] if quick else [0, 1, 2])]
    result = {field: float(summaries[0][field]) for field in FIELDS}
    result["cpu_s"] = max(summary["cpu_s"] for summary in summaries)
    result["wall_s"] = max(summary["wall_s"] for summary in summaries)
    result["eval_first"] = max(summary["eval_first"] for summary in summaries)
    result["eval_last"] = min(summary["eval_last"] for summary in summaries)
    result["seeds"] = len(summaries)
    return result


def _run(seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "astraflow_core", "run", str(EXAMPLE), "--no-live"]
        overrides = ["--set", f"run.seed={seed}", "--set", f"run.directory='{folder}'"]
        subprocess.run([*command, *overrides], check=True, stdout=sys.stderr, timeout=600)
        (summary,) = Path(folder).glob("*/summary.json")
        return dict(json.loads(summary.read_text()))
