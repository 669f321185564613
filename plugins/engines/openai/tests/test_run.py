"""A whole run in which the engine is a frozen verifier of what a policy says, by either dialect."""

from __future__ import annotations

import pytest

from astraflow_testing.runs import TABLE_RUN
from astraflow_tiny_model.folder import write_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]


@pytest.mark.parametrize("plain", [False, True])
def test_a_run_asks_a_server_and_trains_the_other_policy(tmp_path, serving, plain, someone):
    model = write_tiny_model(tmp_path / "model", context=64)
    server = serving(model, plain)
    config = TABLE_RUN.replace(
        'use = "single_turn"', 'use = "solver_verifier"\ntemplate = "{prompt}{answer}"'
    ).replace('model = "tiny:qwen3?hidden=8&layers=1&heads=1&kv_heads=1"', f'model = "{model}"')
    config += f"""
[engines.verifier]
model = "{model}"
use = "openai"
url = "{server.url}"
tokens = "{"text" if plain else "ids"}"
"""
    user = someone(tmp_path)
    try:
        ended = user.run_table("run.steps=2", "run.group_size=4", config=config, deadline_s=120)
    finally:
        user.close()
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == 2 and ended.summary["failed"] == 0
    assert len(server.bodies) >= 64
