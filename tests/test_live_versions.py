"""A run whose trainer publishes adapters, and whose engine has as many of them at once as the staleness bound allows."""

from __future__ import annotations

import pytest

from astraflow_runtime.rollouts.reader import RolloutReader
from astraflow_testing.runs import TABLE_RUN, User

CONFIG = (
    TABLE_RUN.replace(
        "hidden=8&layers=1&heads=1&kv_heads=1", "hidden=16&layers=1&heads=2&kv_heads=1&context=256"
    )
    .replace('"astraflow_testing.table:TableEngine"', '"torch", live_adapters = 3')
    .replace('"astraflow_testing.table:TableAlgorithm"', '"grpo"')
    .replace(
        '"astraflow_testing.table:TableTrainer"',
        '"torch", lora_rank = 2, lr = 1e-2, publish_dtype = "float32"',
    )
)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_trained_sequence_mixes_versions(user: User) -> None:
    pytest.importorskip("astraflow_plugin_torch_trainer.trainer")
    ended = user.run_table(
        "run.deadline_s=60",
        "run.episode_deadline_s=60",
        "sampling.max_tokens=200",
        "rollouts.groups_per_step=100",
        deadline_s=240,
        config=CONFIG,
    )
    assert ended.exit_code == 0, ended.text
    summary, reader = ended.summary, RolloutReader(ended.run_directory)
    assert summary["steps"] == 8 and summary["lost"] == summary["failed"] == 0
    assert 0 < summary["max_staleness_seen"] <= 2
    behind = []
    for entry in reader.entries():
        first, last = entry.versions
        behind.append(reader.group(entry.group).record.newest["solver"] - first)
        # A request older than all live versions continues with the newest, and is too stale to be trained.
        assert first == last or (behind[-1] > 2 and not entry.updates), entry
    assert len(behind) >= summary["accepted"] * 8
    assert sum(1 <= each <= 2 for each in behind) > len(behind) / 10, "few were under way at a swap"
