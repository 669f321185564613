"""What the command refuses before it serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from astraflow_contrib_tinker import serving
from astraflow_contrib_tinker.serving import key_of, served_model
from astraflow_core.errors import UserError

RUN = """
[run]
name = "r"
steps = 1
group_size = 2
max_staleness = 0
[prompts]
use = "digits"
[workflow]
use = "single_turn"
[reward]
use = "exact"
[sampling]
max_tokens = 4
[policies.{name}]
model = "tiny:qwen3?hidden=8&layers=1&heads=1&kv_heads=1"
batch_sequences = 4
trainer = {{ use = "{trainer}" }}
engine = {{ use = "{engine}" }}
algorithm = {{ use = "grpo" }}
transport = {{ use = "http" }}
"""


def run_file(folder: Path, trainer: str = "torch", engine: str = "torch") -> str:
    file = folder / "run.toml"
    file.write_text(RUN.format(name="solver", trainer=trainer, engine=engine), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize(
    ("trainer", "engine", "said"),
    [
        ("megatron", "torch", "trainer 'megatron' lacks the capability gradients"),
        ("torch", "astraflow_testing.table:TableEngine", "lacks the capability"),
    ],
)
def test_components_that_cannot_do_it_are_named(
    trainer: str, engine: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said):
        served_model(run_file(tmp_path, trainer, engine), None, [], tmp_path)


def test_the_policy_of_a_file(tmp_path: Path) -> None:
    file = run_file(tmp_path)
    with pytest.raises(UserError, match="--policy 'solvr': the policies are solver; did you mean"):
        served_model(file, "solvr", [], tmp_path)
    with pytest.raises(UserError, match="belong to a FILE"):
        served_model(None, "solver", [], tmp_path)
    python = ["policies.solver.engine.python=/usr/bin/python3"]
    with pytest.raises(UserError, match="runs engines in its own interpreter"):
        served_model(file, None, python, tmp_path)
    found = served_model(file, None, ["policies.solver.trainer.threads=2"], tmp_path)
    assert found.name.startswith("tiny:qwen3") and found.trainer[1]["threads"] == 2


def test_the_tiny_model_has_several_threads_unless_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert served_model(None, None, [], tmp_path).trainer[1]["threads"] == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    for cores, threads in ((1, 1), (2, 2), (64, 4)):
        monkeypatch.setattr(serving, "usable_cores", lambda cores=cores: cores)
        assert served_model(None, None, [], tmp_path).trainer[1]["threads"] == threads


def test_the_key_is_one_for_clients(tmp_path: Path) -> None:
    file = tmp_path / "key"
    key = key_of(file)
    assert key.startswith("tml-") and key_of(file) == key
    file.write_text("other\n", encoding="ascii")
    with pytest.raises(UserError, match="does not begin with tml-"):
        key_of(file)
