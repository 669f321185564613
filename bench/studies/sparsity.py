"""How sparse the deltas of a training run are: ``python -m bench.studies.sparsity``.

The counterpart of figures 8 and 10 of the AstraFlow paper: the share of bfloat16 weights that an update leaves as they were, bit for bit, and
the bytes of the delta that the transport `delta` makes of the others, for two models of the quickstart's kind at the learning rates of
the paper and at the quickstart's own. The loop is that of the other studies (:mod:`bench.studies.loop`), with the quickstart's task,
loss and optimizer; masters are float32, one update is four optimizer steps on 128 rows. Small models from random weights learn this
task at 1.5e-3 only: at the others they show what the arithmetic of the optimizer changes, and not what learning does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from astraflow_plugin_delta.coding.codec import Codec
from astraflow_plugin_delta.coding.kernels import load_kernel
from bench.studies.lines import Panel, picture
from bench.studies.loop import Setting, train
from bench.studies.records import RESULTS, Runs, read, write
from bench.support.delta_side import encode, manifest_of

MODELS = {
    "0.4M": "tiny:qwen3?hidden=128&layers=2&heads=4&kv_heads=2&head_dim=32&ffn=384&context=64",
    "3M": "tiny:qwen3?hidden=256&layers=4&heads=8&kv_heads=4&head_dim=32&ffn=768&context=64",
}
RATES = ("1e-6", "3e-6", "5e-6", "1.5e-3")
STEPS, BATCH, WARM_UP = 30, 128, 5


class Watch:
    """Compares each version, rounded to bfloat16, with the one before."""

    def __init__(self) -> None:
        self._codec = Codec(load_kernel("auto"))
        self._before: Any = None
        self.weights = 0
        self.unchanged: list[float] = []
        self.share_of_full: list[float] = []

    def __call__(self, arrays: Mapping[str, Any]) -> None:
        """A version was published."""
        flat = np.concatenate([arrays[name].ravel() for name in sorted(arrays)])
        bits = flat.view(np.uint32)
        now = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)  # to the nearest, even
        if self._before is not None:
            link = encode(
                self._codec, self._before, now, manifest_of(self._before, 1), manifest_of(now, 2)
            )
            self.unchanged.append(round(float((now == self._before).mean()), 5))
            self.share_of_full.append(round(len(link) / now.nbytes, 5))
        self.weights, self._before = len(now), now


def setting(model: str, rate: str, steps: int) -> Setting:
    """One run."""
    overrides = (
        "run.seed=0",
        f"run.steps={steps}",
        "run.group_size=8",
        f"policies.solver.model='{MODELS[model]}'",
        f"policies.solver.batch_sequences={BATCH}",
        "policies.solver.mini_batches=4",
        f"policies.solver.trainer.lr={rate}",
        "policies.solver.trainer.schedule='constant'",
        'policies.solver.data=[{ use = "ordering", by = "edf" }]',
    )
    return Setting(overrides, (0, 0), BATCH, eval_every=steps, held_out=32)


def ran(model: str, rate: str, steps: int) -> dict[str, Any]:
    """A run, and what each of its updates changed."""
    watch = Watch()
    found = asyncio.run(train(setting(model, rate, steps), watch))
    return {
        "name": f"{model}@{rate}",
        "weights": watch.weights,
        "unchanged": watch.unchanged,
        "share_of_full": watch.share_of_full,
        "reward": [point["reward"] for point in found["points"]],
        "cpu_s": found["cpu_s"],
    }


def report(runs: Runs, folder: Path) -> None:
    """``table.md`` and ``curves.svg``."""
    lines = [
        "# Sparsity of deltas",
        "",
        f"`python -m bench.studies.sparsity`. Over the updates after the first {WARM_UP}: share of the bfloat16 weights that an",
        "update leaves bit for bit, mean and least; bytes of its delta over those of a whole version.",
        "",
        "| model | weights | learning rate | unchanged | least | delta / whole | whole / delta | bytes per changed weight |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        model, _, rate = run["name"].partition("@")
        same, size = run["unchanged"][WARM_UP:], statistics.fmean(run["share_of_full"][WARM_UP:])
        changed = 1 - statistics.fmean(same)
        lines.append(
            f"| {model} | {run['weights']} | {rate} | {statistics.fmean(same):.4f} | {min(same):.4f} | {size:.4f} | "
            f"{1 / size:.1f} | {2 * size / changed if changed else 0:.2f} |"
        )
    (folder / "table.md").write_text("\n".join(lines) + "\n")
    panels = [
        Panel(
            f"{model}: unchanged weights",
            "update",
            {
                rate: list(enumerate(run["unchanged"], 1))
                for rate in RATES
                for run in runs
                if run["name"] == f"{model}@{rate}"
            },
        )
        for model in MODELS
    ]
    (folder / "curves.svg").write_text(picture(panels))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.studies.sparsity")
    parser.add_argument("--quick", action="store_true", help="a short run, not recorded")
    parser.add_argument("--report", action="store_true", help="make no run, write the report again")
    given = parser.parse_args()
    if given.quick:
        print(json.dumps(ran("0.4M", "3e-6", 3)))
        return 0
    folder = RESULTS / "sparsity"
    folder.mkdir(parents=True, exist_ok=True)
    runs = read(folder)
    for model in MODELS:
        for rate in () if given.report else RATES:
            if not any(run["name"] == f"{model}@{rate}" for run in runs):
                print(f"{model}@{rate} …", file=sys.stderr, flush=True)
                runs.append(ran(model, rate, STEPS))
                write(folder, runs)
    report(runs, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
