"""What a dataflow knows of the models of its run."""

from __future__ import annotations

import json

from astraflow_core.types import PoolTarget
from astraflow_runtime.dataflow.clock import RunClock
from astraflow_runtime.dataflow.http.wakeups import Wakeups
from astraflow_runtime.dataflow.main import build_state
from astraflow_wire.model_files.model_limits import ModelLimits


class Rule:
    every = 10
    cool_down_s = 0.0

    def pool_size(self, window):
        return PoolTarget("hold", window.size)


def test_the_limits_of_each_policy_are_those_of_its_models_folder(config, tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"vocab_size": 27, "max_position_embeddings": 64})
    )
    made = config(policy__model=str(tmp_path), policies=("solver", "judge"))

    class Catalog:
        def build(self, kind, table, context):
            return Rule() if table is made.balance else ["one prompt"]

    state = build_state(made, tmp_path, "", Catalog(), Wakeups(), RunClock())
    state.close()
    assert state.limits == dict.fromkeys(("solver", "judge"), ModelLimits(27, 64))
