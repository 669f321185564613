"""Configurations of other systems become ones that load, and what is lost is said."""

from __future__ import annotations

import argparse
import contextlib
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from astraflow_contrib_init.import_command import add_arguments, read_settings
from astraflow_contrib_init.importing.draft import Draft
from astraflow_contrib_init.importing.reading import read_files
from astraflow_contrib_init.importing.settings import Settings
from astraflow_contrib_init.importing.systems import SYSTEMS, system_of
from astraflow_core.config.models import RunConfig
from astraflow_core.errors import UserError
from astraflow_runtime.cli import main
from astraflow_runtime.config.loading import load_config

VERL = r"""
set -x
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo data.train_files="['/d/a.parquet', '/d/b.parquet']" \
    data.val_files=/d/test.parquet data.train_batch_size=128 data.max_response_length=1024 \
    data.max_prompt_length=512 \
    actor_rollout_ref.model.path=Qwen/Qwen3-4B actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.002 \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 \
    +trainer.total_training_steps=300 trainer.n_gpus_per_node=4 trainer.test_freq=5 \
    trainer.logger=['console','wandb'] trainer.experiment_name='a run/1' \
    custom_reward_function.path=my.py $@
# actor_rollout_ref.rollout.n=16
"""
TRL = {
    "model_name_or_path": "Qwen/Qwen3-0.6B", "num_generations": 8, "max_completion_length": 256, "learning_rate": 2e-6,
    "beta": 0.04, "epsilon": 0.2, "epsilon_high": 0.28, "loss_type": "grpo", "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 4, "steps_per_generation": 8, "bf16": True, "use_vllm": True, "max_steps": 200,
    "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3, "scale_rewards": False, "report_to": ["wandb"],
    "num_iterations": 2, "adam_beta2": 0.95, "lr_scheduler_type": "cosine",
}  # fmt: skip
PRIME = """
max_steps = 20
seq_len = 2048
[deployment]
num_train_gpus = 2
[model]
name = "Qwen/Qwen3-0.6B"
[orchestrator]
batch_size = 128
group_size = 16
max_off_policy_steps = 4
[orchestrator.train.sampling]
max_completion_tokens = 128
[[orchestrator.train.env]]
name = "one"
taskset = { id = "reverse-text", size = 9 }
[[orchestrator.train.source]]
name = "two"
[trainer.optim]
lr = 3e-6
[trainer.loss]
kl_tau = 0.01
[ckpt]
interval = 5
"""
PUBLIC = """
experiment: {trial_name: two, fileroot: "./d/${experiment.trial_name}", model_path: Qwen/Qwen3-8B, dtype: bfloat16,
             weight_transfer_strategies: delta}
raas:
  models:
    actor: {backend: sglang, gconfig: {n_samples: 8, temperature: 0.9, max_new_tokens: 4096, min_new_tokens: 0}}
    judge: {backend: sglang, gconfig: {n_samples: 8, temperature: 1.0, max_new_tokens: 4096}}
dataflow:
  buffer: {replay_ratio: 0.5, max_staleness: 6, filter_function: filter_zero_adv, queue_order: edf}
  curator: greso
  curator_args: {p_easy_init: 0.4, min_submit_easy: 0.05}
  rollout_dataset: {dataset_fn: "data:deepscaler"}
  workflow_spec: {workflow_cls: actor_and_verify, reward_fn: math_verify}
  eval_datasets: {AIME-24: {dataset_fn: "data:aime", repeat: 4}}
trainer_base:
  total_train_steps: 800
  train_batch_size: 256
  engine: {backend: megatron, data_parallel_size: 4}
  actor:
    optimizer: {lr: 5e-6, gradient_clipping: 0.5}
    m2_threshold: 0.004
    eps_clip: 100.0
    reward_norm: {mean_level: group, std_level: null}
    adv_norm: {mean_level: batch, std_level: batch}
  evaluator: {freq_steps: 25}
trainer_actor: {model_id: actor}
trainer_judge: {model_id: judge, actor: {optimizer: {lr: 1e-6}}}
"""
RAAS = "engine: {actor: {data_parallel_size: 2}}\nsglang: {context_length: 7168}\n"


def imported(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parsed = parser.parse_args(list(map(str, arguments)))
    code: int = parsed.command(parsed)
    return code


def result(
    folder: Path, capsys: pytest.CaptureFixture[str], files: dict[str, str]
) -> tuple[RunConfig, dict[str, Any]]:
    """The configuration that the files become, and the report."""
    for name, text in files.items():
        (folder / name).write_text(text)
    out = folder / "run.toml"
    code = imported(*(folder / name for name in files), "--output", out, "--json")
    report = json.loads(capsys.readouterr().out)
    assert (code, report["problem"]) == (0, "")
    return load_config(out).config, report


def lost(report: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["reason"] for each in report["not_carried"]}


def keys(table: Any) -> dict[str, Any]:
    """What a table of a component sets."""
    found: dict[str, Any] = table.model_dump(exclude_unset=True)
    return found


def test_a_script_of_verl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, report = result(tmp_path, capsys, {"grpo.sh": VERL})
    solver = config.policies["solver"]
    assert (config.run.name, config.run.steps, config.run.group_size) == ("a-run-1", 300, 8)
    assert (solver.model, solver.batch_sequences, solver.mini_batches) == (
        "hf:Qwen/Qwen3-4B",
        1024,
        2,
    )
    assert (config.sampling.max_tokens, solver.engine.use, config.eval.every) == (1024, "vllm", 5)
    assert [table["path"] for table in keys(config.prompts)["sources"].values()] == [
        "/d/a.parquet",
        "/d/b.parquet",
    ]
    assert keys(solver.trainer) | {"use": "fsdp", "ranks": 4, "lr": 1e-6} == keys(solver.trainer)
    algorithm = {
        "use": "grpo",
        "clip_low": 0.2,
        "clip_high": 0.28,
        "dual_clip": 3.0,
        "kl_coef": 0.002,
        "kl_clamp": "verl",
    }
    assert keys(solver.algorithm) | algorithm == keys(solver.algorithm)
    assert list(config.trackers) == ["wandb"]
    assert list(lost(report)) == ["data.max_prompt_length"]
    assert any("compute_score of my.py" in each for each in report["todo"])


def test_arguments_of_trl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, report = result(tmp_path, capsys, {"grpo.json": json.dumps(TRL)})
    solver = config.policies["solver"]
    assert (config.run.colocated, config.run.max_staleness, config.run.group_size) == (True, 0, 8)
    assert (solver.batch_sequences, solver.mini_batches) == (64, 2)
    algorithm = keys(solver.algorithm)
    assert (algorithm["aggregation"], algorithm["kl_coef"]) == (
        "seq_mean_token_mean_all_rows",
        0.04,
    )
    assert (algorithm["clip_high"], algorithm["normalize_std"]) == (0.28, False)
    trainer = keys(solver.trainer)
    assert (trainer["betas"], trainer["schedule"]) == ([0.9, 0.95], "cosine")
    assert keys(solver.engine)["gpu_memory_utilization"] == 0.3
    assert "trained once" in lost(report).pop("num_iterations")


def test_cispo_of_trl_has_the_ratio_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {
        "num_generations": 4,
        "loss_type": "cispo",
        "epsilon_high": 5.0,
        "model": "m",
        "max_steps": 1,
    }
    config, _ = result(tmp_path, capsys, {"c.json": json.dumps(given)})
    assert keys(config.policies["solver"].algorithm) == {"use": "cispo", "clip_high": 4.0}


def test_a_configuration_of_prime_rl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, report = result(tmp_path, capsys, {"rl.toml": PRIME})
    solver = config.policies["solver"]
    assert (config.run.steps, config.run.max_staleness, config.checkpoint.every) == (20, 5, 5)
    prompts = keys(config.prompts)
    assert (prompts["environment"], prompts["arguments"]) == ("reverse_text", {"size": 9})
    assert (solver.trainer.use, solver.trainer.ranks) == ("fsdp", 2)
    assert keys(solver.algorithm) == {"use": "prime_rl", "ratio_coef": 0.01}
    environment, others = "orchestrator.train.env.0.name", "orchestrator.train.source"
    assert {"seq_len", environment, others} == set(lost(report))


def test_files_of_the_public_astraflow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, report = result(tmp_path, capsys, {"experiment.yaml": PUBLIC, "raas.yaml": RAAS})
    assert list(config.policies) == ["actor", "judge"]
    assert (config.run.name, config.run.max_staleness, config.sampling.temperature) == (
        "two",
        6,
        0.9,
    )
    assert config.workflow is not None
    assert keys(config.workflow)["verifier"] == {"policy": "judge"}
    actor, judge = config.policies.values()
    assert (keys(actor.trainer)["lr"], keys(judge.trainer)["lr"]) == (5e-6, 1e-6)
    assert (actor.trainer.use, actor.transport.use, actor.engine.replicas) == (
        "megatron",
        "delta",
        2,
    )
    algorithm = {"use": "m2po", "threshold": 0.004, "normalize_std": False, "whiten": "token"}
    assert keys(actor.algorithm) == algorithm, "the clip of M2PO takes the place of eps_clip"
    assert [keys(table)["use"] for table in actor.data] == [
        "dynamic_sampling",
        "ordering",
        "replay",
    ]
    assert keys(config.prompts.data[0]) == {"use": "greso_repository", "p_easy": 0.4}
    assert (config.eval.every, config.eval.samples, list(config.eval.sets)) == (25, 4, ["aime_24"])
    reasons = lost(report)
    assert "all policies sample alike" in reasons["raas.models.judge.gconfig.temperature"]
    assert reasons["experiment.fileroot"].startswith("[run] directory")
    assert "raas.models.judge.gconfig.n_samples" not in reasons, "it is that of the run"


def test_what_is_printed_and_written_says_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "grpo.sh", tmp_path / "run.toml"
    file.write_text("x data.train_files=$FILES actor_rollout_ref.rollout.n=2 trainer.odd=1\n")
    assert imported(file, "--output", out) == 0
    printed, written = capsys.readouterr().out, out.read_text()
    assert "trainer.odd = 1: no counterpart is known" in printed
    for text in ("replace the variable in prompts.path = '$FILES'", "set [run] steps"):
        assert f"  {text}" in printed and f"# - {text}" in written
    assert "group_size = 2                 # rollout.n" in written
    with pytest.raises(UserError, match="exists; remove it"):
        imported(file, "--output", out)


@pytest.mark.parametrize(
    ("name", "text", "arguments", "says"),
    [
        ("a.yaml", "a: [", [], "a.yaml cannot be read as .yaml"),
        ("a.json", "[1]", [], "a.json has no settings"),
        ("a.toml", "x = 1", [], "a configuration with x is not a configuration of a known system; say which it is: --from"),
        ("a.yaml", "actor_rollout_ref: {a: 1}\norchestrator: {a: 1}", [], "may be of prime-rl or verl"),
        ("a.py", "x = 1", [], "expected .yaml, .json or .toml, or a script"),
        ("a.toml", "x = 1", ["--from", "nemo"], "--from nemo: expected one of astraflow, prime-rl, trl, verl"),
        ("a.toml", "max_steps = 'x'", ["--from", "trl"], "has another form than one of TRL has"),
        ("a.sh", "x a.b=1 a.b.c=2", [], "a.b.c is set below a value"),
        ("a.yaml", "x: !!python/object/apply:os.system [id]", [], "cannot be read as .yaml"),
    ],
)  # fmt: skip
def test_what_is_no_configuration_is_refused(
    tmp_path: Path, name: str, text: str, arguments: list[str], says: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as told:
        imported(tmp_path / name, "--output", tmp_path / "run.toml", *arguments)
    assert says in str(told.value)
    assert not (tmp_path / "run.toml").exists()


def test_the_command_line_finds_it_beside_the_subcommands_of_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trl.json").write_text(json.dumps(TRL))
    file, out = str(tmp_path / "trl.json"), str(tmp_path / "run.toml")
    assert main(["config", "import", file, "--output", out]) == 0
    assert main(["config", "import", file, "--output", out]) == 2
    assert "exists; remove it" in capsys.readouterr().err


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "big.json").write_bytes(b" " * ((1 << 20) + 1))
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    for name, says in (
        ("none.yaml", "No such file"),
        ("big.json", "more than"),
        ("bytes.yaml", "is not text"),
    ):
        with pytest.raises(UserError, match=says):
            read_files([tmp_path / name])


def test_later_files_lie_over_earlier_ones_and_references_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: {b: 1, c: 5e-6}\nd: ${a.b}-${x.y}\nloop: ${loop}\n")
    (tmp_path / "b.json").write_text('{"a": {"b": 2}}')
    found = read_files([tmp_path / "a.yaml", tmp_path / "b.json"])
    assert found == {"a": {"b": 2, "c": 5e-6}, "d": "2-${x.y}", "loop": "${loop}"}


def test_the_system_is_known_by_its_names() -> None:
    assert system_of({"num_generations": 1}) is SYSTEMS["trl"]
    assert system_of({"experiment": {}, "raas": {}}) is SYSTEMS["astraflow"]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False)
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.text(min_size=1, max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


EXAMPLES = {"verl": ("a.sh", VERL), "trl": ("a.json", json.dumps(TRL)), "prime-rl": ("a.toml", PRIME), "astraflow": ("a.yaml", PUBLIC)}  # fmt: skip


@pytest.mark.parametrize("name", SYSTEMS)
def test_any_value_of_any_setting_is_carried_or_refused(name: str, tmp_path: Path) -> None:
    file, text = EXAMPLES[name]
    (tmp_path / file).write_text(text)
    example = read_files([tmp_path / file])
    paths = list(Settings(example).left)

    @given(st.dictionaries(st.sampled_from(paths), VALUES, min_size=1, max_size=4))
    @hypothesis_settings(max_examples=60)
    def check(changes: dict[str, Any]) -> None:
        nested: dict[str, Any] = json.loads(json.dumps(example))
        for path, value in changes.items():
            place = nested
            *steps, last = path.split(".")
            for step in steps:
                place = place[step]
            place[last] = value
        with contextlib.suppress(UserError):
            draft, settings = read_settings(SYSTEMS[name], nested)
            assert tomllib.loads(draft.text())
            assert settings.carried

    check()


@pytest.mark.parametrize(("engine", "rank"), [("vllm", 16), ("sglang", None)])
def test_an_adapter_is_written_for_an_engine_that_takes_it(engine: str, rank: int | None) -> None:
    draft = Draft()
    draft.put("policies.a.engine.use", engine, "rollout.name")
    draft.put("policies.a.trainer.lora_rank", 16)
    draft.put("policies.a.trainer.lr", 1e-5)
    draft.serve_adapters()
    assert draft.has("policies.a.trainer.lora_rank") == draft.has("policies.a.engine.lora_rank")
    assert draft.has("policies.a.engine.lora_rank") == (rank is not None)
    assert draft.has("policies.a.trainer.lr")
    told = "put lora_rank = 16 into [policies.a.trainer]"
    assert any(told in each for each in draft.todo) == (rank is None)
