"""Whatever a configuration of another system sets is carried over or listed, in the forms that users write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from astraflow_contrib_init.import_command import read_settings
from astraflow_contrib_init.importing.reading import read_files
from astraflow_contrib_init.importing.systems import system_of
from astraflow_core.errors import UserError
from astraflow_runtime.cli import main
from astraflow_runtime.config.loading import load_config

DAPO = r"""
#!/usr/bin/env bash
set -xeuo pipefail
project_name='DAPO'
exp_name="DAPO-${MODEL:-qwen}-1"
max_response_length=$((1024 * 8))
n_resp_per_prompt=16
train_prompt_bsz=512
clip_ratio_high=0.28
enable_filter_groups=True
loss_agg_mode="token-mean"
export NNODES=${NNODES:-2}
started=$(date +%s)
LIST=(
    data.train_files="${TRAIN_FILE}"
    "data.val_files=['/d/a.parquet']"
)
python3 -m recipe.dapo.main_dapo "${LIST[@]}" \
    data.prompt_key=prompt data.truncation='left' \
    data.max_response_length=${max_response_length} data.max_prompt_length=$((1024 * 2)) \
    data.train_batch_size=${train_prompt_bsz} data.gen_batch_size=$((train_prompt_bsz * 3)) \
    actor_rollout_ref.rollout.n=${n_resp_per_prompt} actor_rollout_ref.rollout.name="${ENGINE:-sglang}" \
    algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=False algorithm.kl_ctrl.kl_coef=0.0 \
    actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=${clip_ratio_high} \
    actor_rollout_ref.actor.clip_ratio_c=10.0 algorithm.filter_groups.enable=${enable_filter_groups} \
    algorithm.filter_groups.metric=acc actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.loss_agg_mode=${loss_agg_mode} \
    actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.optim.lr_warmup_steps=10 \
    actor_rollout_ref.actor.entropy_coeff=0 actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_type=abs actor_rollout_ref.actor.strategy=fsdp2 \
    +actor_rollout_ref.model.override_config.max_position_embeddings=32768 \
    ++actor_rollout_ref.rollout.engine_kwargs.vllm.enforce_eager=null \
    actor_rollout_ref.model.path="${MODEL_PATH}" actor_rollout_ref.rollout.temperature=1.0 \
    actor_rollout_ref.rollout.top_k=-1 'trainer.logger=["console","swanlab"]' \
    reward_model.reward_manager=dapo +reward_model.reward_kwargs.overlong_buffer_cfg.len=4096 \
    trainer.experiment_name="${exp_name}" trainer.project_name=${project_name} trainer.nnodes="${NNODES}" \
    trainer.n_gpus_per_node=8 trainer.total_epochs=1 trainer.test_freq=5 $@
"""
PRIME = """
max_steps = 1000
seq_len = 131072
[run]
name = "swe-131k"
[env_vars]
HF_HOME = "/cache"
[deployment]
type = "multi_node"
num_train_gpus = 8
[model]
name = "zai-org/GLM-4.5-Air"
[monitors.wandb]
project = "swe"
tags = ["swe", "131k"]
[weight_broadcast]
type = "nccl"
[ckpt]
[trainer.model.compile]
[trainer.optim]
type = "muon"
lr = 1e-6
[trainer.loss]
kl_tau = 0.01
[orchestrator]
batch_size = 64
group_size = 8
max_off_policy_steps = 32
[orchestrator.algo.length_penalty]
type = "linear"
[orchestrator.train.sampling]
max_completion_tokens = 128
[[orchestrator.train.source]]
name = "scaleswe"
ratio = 0.5
env.taskset.id = "scaleswe"
env.taskset.split = "train"
env.agent.harness.id = "bash"
[[orchestrator.train.source]]
name = "math"
env.taskset.id = "math"
env.taskset.level = 3
[inference.vllm]
tensor_parallel_size = 8
max_model_len = 131072
kv_cache_dtype = "fp8"
"""
PUBLIC = """
experiment:
  experiment_name: math
  trial_name: lora
  fileroot: ./data/${experiment.experiment_name}/${experiment.trial_name}
  model_path: "Qwen/Qwen3-1.7B"
  tokenizer_path: "Qwen/Qwen3-1.7B"
  seed: 1
  dtype: float16
  weight_transfer_mode: tcp
  weight_transfer_strategies: full
raas: {models: {model0: {backend: sglang, gconfig: {n_samples: 8, temperature: 1.0, max_new_tokens: 14000, min_new_tokens: 0}}}}
dataflow:
  host: "0.0.0.0"
  buffer: {size: 10000, replay_size: 10000, replay_ratio: 0.3, max_staleness: 8, filter_function: mine, replay_selector: latest}
  curator: mine
  curator_args: {p_easy_init: 0.5}
  rollout_dataset: {dataset_fn: "a.b:c", max_length: 2000, batch_size: 1}
  workflow_spec: {workflow_cls: rlvr, reward_fn: math_verify, enable_thinking: false}
  eval_workflows: {math_eval: {workflow_cls: rlvr, gconfig_overrides: {temperature: 0.6, n_samples: 1}}}
  eval_datasets:
    aime24: {dataset_fn: "a.b:aime", max_length: 2000, repeat: 4, eval_workflow: math_eval}
    amc: {dataset_fn: "a.b:amc", max_length: 2000, repeat: 2, eval_workflow: math_eval}
trainer_base:
  total_train_steps: 800
  train_batch_size: 256
  n_samples: 8
  engine: {backend: archon, data_parallel_size: 4}
  actor:
    gradient_checkpointing: true
    use_lora: true
    lora_rank: 32
    lora_alpha: 16
    target_modules: [q_proj, v_proj]
    mb_spec: {max_tokens_per_mb: 17408}
    optimizer: {type: adam, lr: 5e-6, beta1: 0.9, beta2: 0.999, lr_scheduler_type: wsd, gradient_clipping: 1.0,
                warmup_steps_proportion: 0.001}
    m2_threshold: 0.01
    eps_clip: 100.0
    reward_scaling: 1
    reward_bias: 0
    kl_ctl: 0.0
    kl_penalty_coef: 0.001
    ppo_n_minibatches: 4
    reward_norm: {mean_level: group, std_level: group}
    adv_norm: {mean_level: batch, std_level: batch}
  ref: {mb_spec: {max_tokens_per_mb: 17408}}
  recover: {mode: auto, freq_steps: 25}
  evaluator: {eval_at_start: false, freq_steps: 25}
  stats_logger: {wandb: {mode: online, id_suffix: uid}}
trainer_model0: {model_id: model0, stats_logger: {wandb: {tags: [m2po, math]}}}
rollout: {max_concurrent_rollouts: 256, pause_grace_period: 3}
engine: {model0: {backend: sglang, data_parallel_size: 1}}
sglang: {context_length: 7168, mem_fraction_static: 0.8, skip_tokenizer_init: true}
"""
TRL = {
    "model_name_or_path": "Qwen/Qwen3-0.6B", "output_dir": "out/a", "num_generations": 8, "max_completion_length": 256,
    "learning_rate": 2e-6, "beta": 0.04, "epsilon": 0.2, "delta": 1.5, "loss_type": "luspo", "top_k": 20,
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "num_train_epochs": 2, "bf16": True, "fp16": False,
    "use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": "http://h:8000", "scale_rewards": "batch",
    "report_to": ["swanlab", "wandb"], "num_iterations": 2, "lr_scheduler_type": "cosine_with_min_lr",
    "lr_scheduler_kwargs": {"min_lr_rate": 0.1}, "warmup_ratio": 0.03, "save_strategy": "epoch", "save_steps": 50,
    "reward_funcs": ["a", "b"], "reward_weights": [1.0, 0.5], "mask_truncated_completions": True,
    "importance_sampling_level": "token", "ref_model_mixup_alpha": 0.6, "use_liger_kernel": False, "optim": "adamw_8bit",
    "generation_kwargs": {}, "chat_template_kwargs": {"enable_thinking": False}, "gradient_checkpointing_kwargs": None,
}  # fmt: skip
FILES = {"dapo.sh": DAPO, "rl.toml": PRIME, "experiment.yaml": PUBLIC, "trl.json": json.dumps(TRL)}


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, (dict, list)) and value:
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(each, (*path, key))
    elif value is not None:
        yield path, value


def others(value: Any) -> list[Any]:
    """Other values of the kind."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [value * 2 + 3]
    return [f"{value}-other"] if isinstance(value, str) else [{"x": 1}]


def told(nested: dict[str, Any]) -> str:
    """The report and the files that the import makes of a configuration."""
    try:
        draft, settings = read_settings(system_of(nested), json.loads(json.dumps(nested)))
    except UserError as error:
        return str(error)
    return json.dumps([draft.text(), draft.todo, settings.left, settings.unset])


@pytest.mark.parametrize("name", FILES)
def test_what_is_changed_shows(name: str, tmp_path: Path) -> None:
    """A setting that is neither carried over nor listed could be changed without a trace."""
    (tmp_path / name).write_text(FILES[name])
    nested = read_files([tmp_path / name])
    before, silent = told(nested), []
    for path, value in leaves(nested):
        for other in others(value):
            changed = json.loads(json.dumps(nested))
            place = changed
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = other
            if told(changed) == before:
                silent.append(".".join(map(str, path)))
    assert silent == []


@pytest.mark.parametrize("name", FILES)
def test_what_is_written_loads(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(FILES[name])
    out = tmp_path / "run.toml"
    code = main(["config", "import", str(tmp_path / name), "--output", str(out), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (code, report["problem"]) == (0, "")
    assert load_config(out).config.policies


def test_a_script_gives_its_variables(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(
        "n=8\nexport m=${m:-4}\nx=$(date)\nfirst=1; last=2\n"
        "run a.b=${n} +a.c=$((n * 2 + m)) ++a.d=$n-${m} a.e=${other} a.f=$((other * 2)) a.g=${gone:-'[1, 2]'} a.h=$x\n"
    )
    assert read_files([tmp_path / "a.sh"])["a"] == {
        "b": 8, "c": 20, "d": "8-4", "e": "${other}", "f": "$((other*2))", "g": [1, 2], "h": "$x",
    }  # fmt: skip


def test_variables_are_bounded(tmp_path: Path) -> None:
    doubled = [f"v{n + 1}=${{v{n}}}${{v{n}}}" for n in range(40)]
    (tmp_path / "a.sh").write_text("\n".join(["v0=laugh", *doubled, "run a.b=$v40"]))
    with pytest.raises(UserError, match="variables make more than 65536 characters"):
        read_files([tmp_path / "a.sh"])
