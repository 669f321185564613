"""Losses on stale data: ``python -m bench.studies.staleness [--seeds 0 1 2]``.

The quickstart (its task, model and reward) with five losses at staleness 0, 4 and 16. A group arrives after a
delay of between half the bound and the bound, drawn evenly with the run's seed, and as many are on their way as
keeps the trainer busy; so the rows of a batch are three quarters of the bound old on average. Each batch of 32
prompts x 8 samples is trained on in four mini-batches, the learning rate is constant.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from bench.studies import pictures, tables
from bench.studies.loop import Setting
from bench.studies.records import Runs, Study, main

STALENESS = (0, 4, 16)
BATCH = 256
ENTROPY = "entropy_coef = [[0, 0.1], [20, 0.1], [40, 0.0]]"
LOSSES = {
    "grpo": f'{{ use = "grpo", clip_high = 0.28, {ENTROPY} }}',
    "decoupled_ppo": f'{{ use = "decoupled_ppo", clip_high = 0.28, {ENTROPY} }}',
    "grpo_tis": '{ use = "grpo", clip_high = 0.28, proximal = "recompute", '
    f'corrections = [{{ mode = "truncate", high = 2.0 }}], {ENTROPY} }}',
    "m2po": f'{{ use = "m2po", threshold = 0.04, {ENTROPY} }}',
    "gspo": f'{{ use = "gspo", {ENTROPY} }}',
}
WIDER = f'{{ use = "m2po", threshold = 0.25, {ENTROPY} }}'
"""Beside the five, where data are stalest: M2PO with a threshold for large steps."""


def setting(loss: str, staleness: int, seed: int, steps: int, batch: int) -> Setting:
    """One run."""
    overrides = (
        f"run.seed={seed}",
        f"run.steps={steps}",
        f"run.max_staleness={staleness}",
        "run.group_size=8",
        f"policies.solver.batch_sequences={batch}",
        "policies.solver.mini_batches=4",
        "policies.solver.trainer.schedule='constant'",
        f"policies.solver.algorithm={loss}",
        'policies.solver.data=[{ use = "ordering", by = "edf" }]',
    )
    delays = (staleness // 2, staleness)
    under_way = int(batch * (1 + sum(delays) / 2))
    return Setting(overrides, delays, under_way, eval_every=10, held_out=128)


def settings(seed: int) -> Mapping[str, Setting]:
    """All runs of a seed, those on the stalest data first."""
    chosen = {
        f"{name}@{staleness}": setting(loss, staleness, seed, 60, BATCH)
        for staleness in reversed(STALENESS)
        for name, loss in LOSSES.items()
    }
    return chosen | {"m2po_wider@16": setting(WIDER, 16, seed, 60, BATCH)}


def quick(seed: int) -> Mapping[str, Setting]:
    """Two short runs."""
    return {
        f"{name}@{staleness}": setting(LOSSES[name], staleness, seed, 3, 64)
        for name, staleness in (("grpo", 0), ("m2po", 4))
    }


def report(runs: Runs, folder: Path) -> None:
    """``table.md`` and ``curves.svg``."""
    (folder / "table.md").write_text(tables.staleness(runs, STALENESS))
    names = [*LOSSES, "m2po_wider"]
    panels = {
        f"staleness {staleness}": {name: f"{name}@{staleness}" for name in names}
        for staleness in STALENESS
    }
    (folder / "curves.svg").write_text(pictures.panels(runs, panels, "update", "updates"))


STUDY = Study("staleness", settings, quick, report)

if __name__ == "__main__":
    sys.exit(main(STUDY))
