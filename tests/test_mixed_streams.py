"""A verifier that borrows half of its batches from the solver, in a real run, and its dataflow is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from astraflow_core.errors import ConfigError, PreflightError
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.launch.planning.prepare import prepare
from astraflow_testing.runs import TABLE_RUN, User
from astraflow_tiny_model.folder import write_tiny_model

WORKFLOW = '''
from astraflow_core.types import Trajectory


class Both:
    """Solver and verifier complete the same prompt."""

    def __init__(self, config, context):
        self.names = context.run.policies

    async def run_episode(self, engines, prompt):
        sequences, completions = [], []
        for name in self.names:
            engine = engines[name]
            tokens = engine.tokenizer.encode(prompt.data["prompt"])
            result = await engine.generate(tokens)
            if result.finish_reason == "abort":
                return None
            sequences.append(engine.sequence(tokens, result))
            completions.append(engine.completion(result))
        return Trajectory(tuple(sequences), tuple(completions))
'''
SOLVER = TABLE_RUN[TABLE_RUN.index("[policies.solver]") : TABLE_RUN.index("[raas]")]
MIXED = 'data = [{ use = "mixed_streams", source = "solver", ratio = 0.5 }]\n'
CONFIG = (
    TABLE_RUN.replace('use = "single_turn"', 'use = "both:Both"')
    + SOLVER.replace("solver", "verifier")
    + MIXED
)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(sys.platform != "linux", reason="kills a process of the run")
def test_a_run_whose_verifier_learns_from_the_solver_too(user: User) -> None:
    user.write("both.py", WORKFLOW)
    user.environment["PYTHONPATH"] = str(user.directory)
    process = user.start(*user.table_arguments("run.steps=40", config=CONFIG))
    directory = user.wait_for_steps(10, 120)
    os.kill(json.loads((directory / "dataflow.json").read_text())["pid"], signal.SIGKILL)
    ended = user.end(process, 120)
    assert ended.exit_code == 0, ended.text
    status = json.loads((directory / "status.json").read_text())
    assert status["invariants_ok"] and ended.summary["lost"] == 0
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line.get("policy") == "verifier"]
    borrowed = sum(line["borrowed"] for line in steps)
    lent = status["policies"]["verifier"]["borrowed"]
    assert (lent["source"], lent["trained"], lent["lost"]) == ("solver", borrowed, 0)
    assert borrowed > len(steps) * 32 / 4 and all(line["borrowed"] <= 16 for line in steps)
    assert all(int(age) <= 2 for line in steps for age in line["borrowed_age"])
    rows = status["policies"]["verifier"]["rows"]
    assert rows["trained"] + borrowed == 40 * 32
    assert status["policies"]["solver"]["borrowed"]["lent"] == 0


@pytest.mark.parametrize(
    ("source", "expected"),
    [("verifier", "is not another policy"), ("sovler", "the others are: solver")],
)
def test_the_source_must_be_another_policy(user: User, source: str, expected: str) -> None:
    user.write("both.py", WORKFLOW)
    config = CONFIG.replace('source = "solver"', f'source = "{source}"')
    path = user.write("run.toml", config.replace("both:Both", "single_turn"))
    with pytest.raises(ConfigError, match=expected) as caught:
        load_config(path)
    assert "policies.verifier.data.0.source" in str(caught.value)


def test_policies_of_different_tokenizers_share_no_rows(
    user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = CONFIG.replace("both:Both", "single_turn").replace(
        '"single_turn"', '"single_turn"\npolicy = "solver"'
    )
    for name in ("one", "other"):
        write_tiny_model(tmp_path / name, hidden=8, layers=1, heads=2, kv_heads=1, context=1024)
    tokenizer = tmp_path / "other" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    path = user.write("run.toml", config)
    models = (f"policies.solver.model={tmp_path}/one", f"policies.verifier.model={tmp_path}/other")
    with pytest.raises(PreflightError, match="their tokenizers differ"):
        prepare(path, models)
