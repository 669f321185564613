"""Two policies of one run, each with its own algorithm and what that needs of its trainer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_core.component import Kind
from astraflow_core.config.load import component_context
from astraflow_core.errors import ConfigError, PreflightError, UserError
from astraflow_core.types import Batch
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.dataflow.rows.statistics import group_statistics, units_of
from astraflow_runtime.trainer.updates.update import check_needs, update
from astraflow_tiny_model.folder import write_tiny_model

RUN = """
[run]
name = "roles"
steps = 4
max_staleness = 1

[prompts]
use = "digits"

[workflow]
use = "solver_verifier"

[reward]
use = "exact"
each_policy = true

[policies.solver]
model = "{folder}"
engine = {{ use = "torch" }}
trainer = {{ use = "torch", device = "cpu", micro_batch_tokens = 30 }}
algorithm = {{ use = "m2po", threshold = 0.02 }}
batch_sequences = 8
transport = {{ use = "http" }}

[policies.verifier]
model = "{folder}"
engine = {{ use = "torch" }}
trainer = {{ use = "torch", device = "cpu", critic = "model" }}
algorithm = {{ use = "ppo", gae_unit = "turn", gae_scope = "trajectory", kl_coef = 0.01 }}
batch_sequences = 8
transport = {{ use = "http" }}
"""


def make_batch(policy: str) -> Batch:
    rng = np.random.default_rng(len(policy))
    lengths = rng.integers(4, 9, 8).astype(np.int32)
    total = int(lengths.sum())
    mask = np.ones(total, bool)
    mask[np.cumsum(lengths) - lengths] = False
    rewards = rng.random(8).astype(np.float32)
    group, trajectory = np.repeat([3, 4], 4), np.repeat([0, 1, 2, 3], 2)
    of = [group_statistics(rewards[group == g]) for g in (3, 4)]
    trained = lengths - 1
    return Batch(
        id=f"{policy}-000000", policy=policy, version=0, lengths=lengths,
        tokens=rng.integers(1, 20, total).astype(np.int32), loss_mask=mask,
        logprobs=np.where(mask, -3 * rng.random(total), 0).astype(np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32), rewards=rewards, group=group,
        trajectory=trajectory, group_size=np.full(8, 4, np.int32),
        group_mean=np.repeat([s.mean for s in of], 4).astype(np.float32),
        group_std=np.repeat([s.std for s in of], 4).astype(np.float32),
        units=units_of(group, trajectory, rewards, trained),
    )  # fmt: skip


def load(tmp_path: Path, *overrides: str) -> Any:
    folder = tmp_path / "model"
    if not folder.exists():
        write_tiny_model(folder, hidden=16, layers=1, heads=2, kv_heads=1, init_std=0.2)
    file = tmp_path / "run.toml"
    file.write_text(RUN.format(folder=folder.as_posix()), encoding="utf-8")
    return load_config(file, overrides)


def test_each_policy_is_trained_by_its_own_algorithm(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    seen: dict[str, dict[str, float]] = {}
    for policy, table in loaded.config.policies.items():
        context = component_context(loaded.config, tmp_path, "trainer", policy, policy, "token")
        algorithm: Any = loaded.catalog.build(Kind.ALGORITHM, table.algorithm, context)
        trainer: Any = loaded.catalog.build(Kind.TRAINER, table.trainer, context)
        flags = loaded.catalog.flags(Kind.TRAINER, table.trainer.use)
        check_needs(algorithm, table.algorithm.use, table.trainer.use, flags)
        trainer.setup(tmp_path / "model", 4, algorithm.needs)
        before = trainer.logprobs(make_batch(policy), "current")
        seen[policy] = update(make_batch(policy), trainer, algorithm, parts=2, seed=0, step=0)
        assert not np.array_equal(before, trainer.logprobs(make_batch(policy), "current"))
        assert np.isfinite(list(seen[policy].values())).all()
        trainer.close()
        lacking = flags - {"values", "proximal"}
        with pytest.raises(PreflightError, match=f"{table.algorithm.use!r} as configured needs"):
            check_needs(algorithm, table.algorithm.use, "other", lacking)
    only_one = {"solver": {"m2_low", "m2_high"}, "verifier": {"value_loss", "critic_grad_norm"}}
    for policy, names in only_one.items():
        for other, metrics in seen.items():
            assert names <= metrics.keys() if other == policy else not names & metrics.keys()
    for metrics in seen.values():
        assert 0 < metrics["ratio_ess"] <= 1 and metrics["second_moment"] > 0
        assert "ratio_square_mean" not in metrics


def test_a_variant_that_no_one_published_is_refused_at_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policies\.solver\.algorithm.*clip_range_astraflow"):
        load(tmp_path, "policies.solver.algorithm.variant='paper'")
    with pytest.raises(ConfigError, match=r"policies\.verifier\.algorithm"):
        load(tmp_path, "policies.verifier.algorithm.gae_scope='group'")


def test_a_trajectory_needs_the_statistics_of_a_dataflow(tmp_path: Path) -> None:
    loaded = load(tmp_path, "policies.solver.algorithm={use='grpo', group_unit='trajectory'}")
    for policy, told in (("solver", "group_unit = 'trajectory'"), ("verifier", "gae_scope")):
        context = component_context(loaded.config, tmp_path, "trainer", policy, policy, "token")
        table = loaded.config.policies[policy].algorithm
        algorithm: Any = loaded.catalog.build(Kind.ALGORITHM, table, context)
        batch = make_batch(policy)
        bare = replace(
            batch,
            units=None,
            values=np.zeros(len(batch.tokens), np.float32),
            reference=batch.logprobs,
        )
        with pytest.raises(UserError, match=rf"{told}.*'{policy}-000000' \(8 rows\)"):
            algorithm.advantages(bare)
