"""Data policies and their savings: ``python -m bench.studies.data_policies [--seeds 0 1 2]``.

The quickstart (its task, model and reward) on 512 prompts with 8 rollouts each and 60 updates of 256 rows; where
half of a batch is replayed 120, for which the rollouts of 60 suffice. ``ds``: dynamic sampling; ``replay_R``: the share R of a batch is rows of earlier batches, at most
8 versions old; ``greso``: the hyper-parameters of the AstraFlow paper's runs. Rollouts wait for updates and the
other way round, so fresh rows are on policy and what differs is the data alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from bench.studies import pictures, tables
from bench.studies.loop import Setting
from bench.studies.records import Runs, Study, main

BATCH = 256
MOST_SHOWN = 20_000
"""Rollouts up to which curves are drawn; the tables have all of them."""

GRPO = '{ use = "grpo", clip_high = 0.28, entropy_coef = [[0, 0.1], [20, 0.1], [40, 0.0]] }'
DS, GRESO = '{ use = "dynamic_sampling" }', '{ use = "greso" }'
VARIANTS: dict[str, tuple[bool, float, bool]] = {
    "vanilla": (False, 0.0, False),
    "ds": (True, 0.0, False),
    "replay_0.3": (False, 0.3, False),
    "replay_0.5": (False, 0.5, False),
    "replay_0.7": (False, 0.7, False),
    "greso": (False, 0.0, True),
    "ds+replay_0.3": (True, 0.3, False),
    "ds+replay_0.5": (True, 0.5, False),
    "ds+replay_0.7": (True, 0.7, False),
    "ds+greso": (True, 0.0, True),
    "ds+replay_0.3+greso": (True, 0.3, True),
    "ds+replay_0.5+greso": (True, 0.5, True),
}
"""Dynamic sampling, replay ratio, GRESO."""


def setting(
    variant: tuple[bool, float, bool], seed: int, steps: int, batch: int, prompts: int
) -> Setting:
    """One run."""
    filters, ratio, greso = variant
    data = [DS] if filters else []
    if ratio:
        data.append(f'{{ use = "replay", ratio = {ratio}, pool_size = 10000 }}')
    overrides = (
        f"run.seed={seed}",
        f"run.steps={steps}",
        "run.max_staleness=8",
        "run.group_size=8",
        f"prompts.size={prompts}",
        f"prompts.data=[{GRESO if greso else ''}]",
        f"policies.solver.batch_sequences={batch}",
        "policies.solver.mini_batches=4",
        "policies.solver.trainer.schedule='constant'",
        f"policies.solver.algorithm={GRPO}",
        f"policies.solver.data=[{', '.join(data)}]",
    )
    fresh = int(batch * (1 - ratio))
    return Setting(overrides, (0, 0), fresh, eval_every=5, held_out=128)


def settings(seed: int) -> Mapping[str, Setting]:
    """All runs of a seed."""
    return {
        name: setting(variant, seed, 120 if variant[1] == 0.5 else 60, BATCH, 512)
        for name, variant in VARIANTS.items()
    }


def quick(seed: int) -> Mapping[str, Setting]:
    """Two short runs."""
    chosen = ("vanilla", "ds+replay_0.5+greso")
    return {name: setting(VARIANTS[name], seed, 4, 64, 16) for name in chosen}


def report(runs: Runs, folder: Path) -> None:
    """``table.md`` and ``curves.svg``."""
    (folder / "table.md").write_text(tables.data_policies(runs, list(VARIANTS)))
    panels = {
        "one policy": {name: name for name in VARIANTS if "+" not in name},
        "composed": {name: name for name in VARIANTS if "+" in name or name == "vanilla"},
    }
    (folder / "curves.svg").write_text(
        pictures.panels(runs, panels, "rollouts", "rollouts", MOST_SHOWN)
    )


STUDY = Study("data_policies", settings, quick, report)

if __name__ == "__main__":
    sys.exit(main(STUDY))
