"""Settings of verl's ``main_ppo`` (0.9): a Hydra YAML, or a script with overrides."""

from __future__ import annotations

from typing import Any

from astraflow_contrib_init.importing.draft import Draft, System, model_reference, run_name
from astraflow_contrib_init.importing.settings import Settings

_ADVANTAGES = {
    "grpo": "grpo",
    "rloo": "rloo",
    "reinforce_plus_plus": "reinforce_pp",
    "opo": "opo",
    "gpg": "gpg",
    "optimal_token_baseline": "otb",
    "tir_optimal_token_baseline": "otb",
    "gae": "ppo",
}
_LOSSES = {"gspo": "gspo", "sapo": "sapo", "cispo": "cispo"}
_AGGREGATIONS = {
    "": "",
    "token-mean": "token_mean",
    "seq-mean-token-mean": "seq_mean_token_mean",
    "seq-mean-token-sum": "seq_mean_token_sum",
    "seq-mean-token-sum-norm": "seq_mean_token_sum_norm",
}
_TRACKERS = ("wandb", "tensorboard", "mlflow")
_ENGINES = {name: name for name in ("vllm", "sglang", "hf")}
_STRATEGIES = {"fsdp": "fsdp", "fsdp2": "fsdp", "megatron": "megatron"}
_KL = {"low_var_kl": "k3", "k3": "k3", "kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2"}
_ACTOR, _ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."


def read(nested: dict[str, Any]) -> tuple[Draft, Settings]:
    """The draft of a configuration, and what of ``nested`` it used."""
    settings, draft = Settings(nested), Draft()
    policy = "policies.solver"
    name = (
        settings.take("trainer.experiment_name")
        or settings.take("trainer.project_name")
        or "from-verl"
    )
    draft.put("run.name", run_name(str(name)), "experiment_name")
    steps = settings.number("trainer.total_training_steps")
    if steps is None:
        draft.todo.append("set [run] steps: updates, in place of total_epochs; 100 are set now")
    draft.put("run.steps", int(steps or 100), "total_training_steps")
    draft.put("run.max_staleness", 0, "verl is on-policy; 1 lets sampling and training overlap")
    samples = settings.number(f"{_ROLLOUT}n") or 1
    draft.put("run.group_size", int(samples), "rollout.n")
    _data(settings, draft)
    draft.carry(settings, {n: f"sampling.{n}" for n in ("temperature", "top_p")}, _ROLLOUT)
    if (settings.number(f"{_ROLLOUT}top_k") or 0) > 0:
        draft.carry(settings, {"top_k": "sampling.top_k"}, _ROLLOUT)
    model = str(settings.take("actor_rollout_ref.model.path", ""))
    draft.put(f"{policy}.model", model_reference(model), "model.path")
    prompts = settings.number("data.train_batch_size")
    if prompts is None:
        draft.todo.append(
            f"set batch_sequences of {policy}: data.train_batch_size x rollout.n; 1024 are set now"
        )
    draft.put(
        f"{policy}.batch_sequences",
        int((prompts or 1024) * samples) if prompts else 1024,
        "train_batch_size x n",
    )
    mini = settings.number(f"{_ACTOR}ppo_mini_batch_size")
    if mini and prompts:
        draft.put(
            f"{policy}.mini_batches",
            max(1, round(prompts / mini)),
            "train_batch_size / ppo_mini_batch_size",
        )
    if settings.take("algorithm.filter_groups.enable", False):
        draft.put(f"{policy}.data", [{"use": "dynamic_sampling"}], "filter_groups")
    _engine(settings, draft, f"{policy}.engine")
    _trainer(settings, draft, f"{policy}.trainer")
    _algorithm(settings, draft, f"{policy}.algorithm")
    draft.put(f"{policy}.transport.use", "auto")
    _around(settings, draft)
    return draft, settings


def _data(settings: Settings, draft: Draft) -> None:
    source = {
        "prompt_key": settings.take("data.prompt_key", "prompt"),
        "answer_key": "reward_model.ground_truth",
    }
    files = _files(settings.take("data.train_files"))
    if len(files) > 1:
        draft.put("prompts.use", "merged", "train_files")
        for number, file in enumerate(files, 1):
            table = {"use": "parquet", "path": file, **source}
            for key, value in table.items():
                draft.put(f"prompts.sources.part_{number}.{key}", value)
    else:
        for key, value in {
            "use": "parquet",
            "path": (files or ["train.parquet"])[0],
            **source,
        }.items():
            draft.put(f"prompts.{key}", value, "train_files" if key == "path" else "")
    every = settings.number("trainer.test_freq") or 0
    held_out = _files(settings.take("data.val_files"))
    if held_out and every > 0:
        draft.put("eval.every", int(every), "test_freq")
        draft.carry(
            settings,
            {"val_kwargs.n": "eval.samples", "val_kwargs.temperature": "eval.temperature"},
            _ROLLOUT,
        )
        for number, file in enumerate(held_out, 1):
            for key, value in {"use": "parquet", "path": file, **source}.items():
                draft.put(f"eval.sets.held_out_{number}.{key}", value)
    tokens = settings.number("data.max_response_length")
    draft.put("sampling.max_tokens", int(tokens or 512), "max_response_length")
    draft.put("workflow.use", "single_turn")
    draft.put("workflow.chat", True)
    function = settings.take("custom_reward_function.path") or settings.take(
        "reward.custom_reward_function.path"
    )
    name = settings.take("custom_reward_function.name", "compute_score")
    draft.put("reward.use", "math_verify")
    if function:
        draft.todo.append(f"name a reward that calls {name} of {function}; math_verify is set now")


def _files(value: Any) -> list[str]:
    """The only path, or the paths of a list."""
    if isinstance(value, list):
        return [str(each) for each in value]
    return [str(value)] if value else []


def _engine(settings: Settings, draft: Draft, engine: str) -> None:
    use = settings.choice(f"{_ROLLOUT}name", _ENGINES, "vllm")
    draft.put(f"{engine}.use", use, "rollout.name")
    if use != "hf":
        draft.put(f"{engine}.python", f"env:{use}")
        memory = "gpu_memory_utilization" if use == "vllm" else "memory_fraction"
        names = {"gpu_memory_utilization": memory, "tensor_model_parallel_size": "tensor_parallel",
                 "max_model_len": "context_length"}  # fmt: skip
        draft.carry(settings, {n: f"{engine}.{k}" for n, k in names.items()}, _ROLLOUT)


def _trainer(settings: Settings, draft: Draft, trainer: str) -> None:
    strategy = settings.choice(f"{_ACTOR}strategy", _STRATEGIES, "fsdp")
    draft.put(f"{trainer}.use", strategy, "actor.strategy")
    devices, hosts = (
        settings.number(f"trainer.{name}") or 1 for name in ("n_gpus_per_node", "nnodes")
    )
    if devices * hosts > 1:
        draft.put(f"{trainer}.ranks", int(devices * hosts), "n_gpus_per_node x nnodes")
        draft.todo.append(
            "share the GPUs: verl's trainer and engine take turns on all ([run] colocated = true); without it `ranks` of the "
            "trainer and `replicas` of the engine have devices of their own"
        )
    names = {"optim.lr": "lr", "optim.weight_decay": "weight_decay", "optim.betas": "betas", "grad_clip": "max_grad_norm",
             "ppo_max_token_len_per_gpu": "micro_batch_tokens"}  # fmt: skip
    if strategy == "fsdp":
        names["ulysses_sequence_parallel_size"] = "context_parallel"
    draft.carry(settings, {n: f"{trainer}.{k}" for n, k in names.items()}, _ACTOR)
    if settings.take(f"{_ACTOR}fsdp_config.param_offload", False) and strategy == "fsdp":
        draft.put(f"{trainer}.cpu_offload", True, "param_offload")
    warm = settings.number(f"{_ACTOR}optim.lr_warmup_steps")
    if warm and warm > 0:
        draft.put(f"{trainer}.warmup_steps", int(warm), "lr_warmup_steps")
    names = {
        "enable_gradient_checkpointing": "gradient_checkpointing",
        "lora_rank": "lora_rank",
        "lora_alpha": "lora_alpha",
    }
    if settings.number("actor_rollout_ref.model.lora_rank") in (None, 0):
        del names["lora_rank"], names["lora_alpha"]
    draft.carry(
        settings, {n: f"{trainer}.{k}" for n, k in names.items()}, "actor_rollout_ref.model."
    )
    draft.put(f"{trainer}.compute_dtype", "bfloat16")


def _algorithm(settings: Settings, draft: Draft, algorithm: str) -> None:
    estimator = str(settings.take("algorithm.adv_estimator", "grpo"))
    loss = str(settings.take(f"{_ACTOR}policy_loss.loss_mode", "vanilla"))
    use = _LOSSES.get(loss) or _ADVANTAGES.get(estimator, "grpo")
    if estimator not in _ADVANTAGES or loss not in {"vanilla", *_LOSSES}:
        draft.todo.append(
            f"choose an algorithm for {estimator} with the loss {loss}; {use} is set now"
        )
    draft.put(f"{algorithm}.use", use, f"adv_estimator: {estimator}, loss_mode: {loss}")
    if use in ("grpo", "gspo", "sapo", "cispo"):
        draft.put(f"{algorithm}.std_eps", 1e-6, "as verl")
        draft.put(f"{algorithm}.singleton_advantage", "reward", "as verl")
        if settings.take("algorithm.norm_adv_by_std_in_grpo", True) is False:
            draft.put(f"{algorithm}.normalize_std", False, "norm_adv_by_std_in_grpo")
    draft.put(
        f"{algorithm}.proximal",
        "recompute",
        "as verl; without it the ratio is to the policy that sampled",
    )
    if use in ("grpo", "rloo", "reinforce_pp", "opo", "otb", "ppo", "gspo"):
        ratio = settings.number(f"{_ACTOR}clip_ratio") or 0.2
        low, high = (settings.number(f"{_ACTOR}clip_ratio_{name}") for name in ("low", "high"))
        draft.put(f"{algorithm}.clip_low", ratio if low is None else low, "clip_ratio_low")
        draft.put(f"{algorithm}.clip_high", ratio if high is None else high, "clip_ratio_high")
        if use != "gspo":
            draft.put(
                f"{algorithm}.dual_clip",
                settings.number(f"{_ACTOR}clip_ratio_c") or 3.0,
                "clip_ratio_c",
            )
    if use == "grpo":
        draft.put(f"{algorithm}.log_ratio_clamp", 20.0, "as verl")
    if mode := settings.choice(f"{_ACTOR}loss_agg_mode", _AGGREGATIONS, ""):
        draft.put(f"{algorithm}.aggregation", mode, "loss_agg_mode")
    draft.carry(settings, {"entropy_coeff": f"{algorithm}.entropy_coef"}, _ACTOR)
    in_loss, in_reward = (
        settings.take(f"{_ACTOR}use_kl_loss", False),
        settings.take("algorithm.use_kl_in_reward", False),
    )
    if in_loss:
        draft.put(
            f"{algorithm}.kl_coef",
            settings.number(f"{_ACTOR}kl_loss_coef") or 0.001,
            "kl_loss_coef",
        )
        kind = settings.choice(f"{_ACTOR}kl_loss_type", _KL, "low_var_kl")
        draft.put(f"{algorithm}.kl_estimator", kind, "kl_loss_type")
        draft.put(f"{algorithm}.kl_clamp", "verl")
    if in_reward and in_loss:
        settings.leave("algorithm.use_kl_in_reward", True)
    elif in_reward:
        draft.put(
            f"{algorithm}.kl_coef",
            settings.number("algorithm.kl_ctrl.kl_coef") or 0.001,
            "kl_ctrl.kl_coef",
        )
        draft.put(f"{algorithm}.kl_in", "reward", "use_kl_in_reward")
    if use == "ppo":
        names = {"gamma": "gamma", "lam": "lam"}
        draft.carry(settings, {n: f"{algorithm}.{k}" for n, k in names.items()}, "algorithm.")


def _around(settings: Settings, draft: Draft) -> None:
    every = settings.number("trainer.save_freq") or 0
    if every > 0:
        draft.put("checkpoint.every", int(every), "save_freq")
    for name in _files(settings.take("trainer.logger")):
        fitting = [tracker for tracker in _TRACKERS if tracker in name]
        for tracker in fitting:
            draft.put(f"trackers.{tracker}.use", tracker, "trainer.logger")
        if not fitting and name != "console":
            settings.leave(f"trainer.logger.{name}", name)


SYSTEM = System(
    "verl",
    ("actor_rollout_ref",),
    read,
    {
        "actor_rollout_ref.actor.ppo_epochs": "a batch is trained once; the data policy `replay` serves rows again",
        "actor_rollout_ref.actor.ppo_micro_batch_size": "micro_batch_tokens of the trainer counts tokens, not rows",
        "actor_rollout_ref.actor.use_dynamic_bsz": "not needed: micro-batches are always cut by tokens",
        "actor_rollout_ref.rollout.log_prob": "not needed: micro-batches are always cut by tokens",
        "actor_rollout_ref.ref.log_prob": "not needed: micro-batches are always cut by tokens",
        "actor_rollout_ref.ref": "the reference model is the trainer's: reference_model",
        "actor_rollout_ref.model.use_remove_padding": "not needed: rows are packed",
        "actor_rollout_ref.actor.fsdp_config": "cpu_offload of the trainer, or offload_weights when colocated",
        "actor_rollout_ref.rollout.multi_turn": "an environment, a workflow or an agent (docs/agents.md)",
        "actor_rollout_ref.rollout": "a key of the engine: `arguments` passes any option to vLLM or SGLang",
        "data.max_prompt_length": "a prompt that leaves no room for an answer fails with a reason",
        "data.filter_overlong_prompts": "a prompt that leaves no room for an answer fails with a reason",
        "data.truncation": "prompts are never truncated",
        "data.shuffle": "[prompts] shuffle, true by default",
        "critic": "the critic of `ppo` is the trainer's: critic, critic_model, value_lr_scale",
        "trainer.total_epochs": "[run] steps counts updates",
        "trainer.resume_mode": "astraflow run --resume DIRECTORY",
        "trainer.project_name": "a run has one name, taken from experiment_name",
        "trainer.critic_warmup": "no counterpart",
        "trainer.val_before_train": "the first version is always evaluated",
    },
    "docs/coming-from-verl.md",
)
