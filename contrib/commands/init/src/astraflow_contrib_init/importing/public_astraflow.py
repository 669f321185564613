"""Configurations of the public AstraFlow (0.1.2): ``experiment.yaml``, and ``raas.yaml`` next to it."""

from __future__ import annotations

from typing import Any

from astraflow_contrib_init.importing.draft import (
    Draft,
    System,
    key_name,
    model_reference,
    run_name,
)
from astraflow_contrib_init.importing.reading import merged
from astraflow_contrib_init.importing.settings import Settings

_WORKFLOWS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "rlvr": ({"use": "single_turn", "chat": True}, ()),
    "actor_and_verify": ({"use": "verified_solver"}, ("solver", "verifier")),
    "solve_and_verify": ({"use": "verified_solver"}, ("solver", "verifier")),
    "plan_and_solve": ({"use": "plan_and_solve"}, ("planner", "solver")),
}
"""Name there → the workflow here, and its roles, which the models play in their order."""
_REWARDS = {"math_verify": "math_verify", "livecodebench_reward": "code_tests"}
_CURATORS = {
    "filter_solved": "solved_filter",
    "accept_all": "accept_all",
    "greso": "greso_repository",
}
_GRESO = {
    "p_easy_init": "p_easy",
    "p_hard_init": "p_hard",
    "alpha_easy": "target_easy",
    "alpha_hard": "target_hard",
    "delta_p": "step",
}
_BACKENDS = {name: name for name in ("fsdp", "megatron")}
_TRANSPORTS = {"full": "http", "delta": "delta"}
_SCHEDULES = {name: name for name in ("constant", "linear", "cosine")}
_LORA = {"lora_rank": "lora_rank", "lora_alpha": "lora_alpha", "target_modules": "lora_targets"}
_TRAINER = {
    "actor.optimizer.lr": "lr",
    "actor.optimizer.weight_decay": "weight_decay",
    "actor.optimizer.eps": "eps",
    "actor.optimizer.gradient_clipping": "max_grad_norm",
    "actor.gradient_checkpointing": "gradient_checkpointing",
    "actor.mb_spec.max_tokens_per_mb": "micro_batch_tokens",
}


def read(nested: dict[str, Any]) -> tuple[Draft, Settings]:
    """The draft of a configuration, and what of ``nested`` it used."""
    base = nested.pop("trainer_base", {})
    own = {name: nested.pop(name) for name in list(nested) if name.startswith("trainer")}
    trainers = {}
    for name, table in own.items():
        both = merged(base, table)
        trainers[str(both.pop("model_id", name.removeprefix("trainer_")))] = both
    trainers = trainers or {"model0": base}
    settings = Settings(
        {**nested, **{f"trainer_{model}": table for model, table in trainers.items()}}
    )
    draft = Draft()
    models = settings.below("raas.models") or list(trainers)
    _run(settings, draft, models[0])
    _data(settings, draft, models)
    for model in models:
        _policy(settings, draft, model)
    for model in models[1:]:
        for start in ("raas.models.{}.", "trainer_{}."):
            settings.take_equal(start.format(model), start.format(models[0]))
    return draft, settings


def _run(settings: Settings, draft: Draft, model: str) -> None:
    trial = settings.take("experiment.trial_name") or "imported"
    draft.put("run.name", run_name(str(trial)), "trial_name")
    trainer, generation = f"trainer_{model}.", f"raas.models.{model}.gconfig."
    draft.put("run.steps", settings.take(f"{trainer}total_train_steps", 100), "total_train_steps")
    draft.put(
        "run.max_staleness", settings.take("dataflow.buffer.max_staleness", 8), "max_staleness"
    )
    name = f"{generation}n_samples"
    if name not in settings:
        name = f"{trainer}n_samples"
    draft.put("run.group_size", settings.take(name, 8), "n_samples")
    settings.take_same([f"{trainer}n_samples"], name)
    draft.carry(settings, {"experiment.seed": "run.seed"})
    names = {
        "max_new_tokens": "max_tokens",
        "temperature": "temperature",
        "top_p": "top_p",
        "top_k": "top_k",
    }
    draft.carry(settings, {name: f"sampling.{key}" for name, key in names.items()}, generation)
    draft.carry(settings, {"recover.freq_steps": "checkpoint.every"}, trainer)


def _data(settings: Settings, draft: Draft, models: list[str]) -> None:
    source = settings.take("dataflow.rollout_dataset.dataset_fn") or "its data"
    draft.put("prompts.use", "jsonl")
    draft.put("prompts.path", "prompts.jsonl", "dataset_fn")
    draft.todo.append(
        f"write the prompts of {source} to prompts.jsonl, with the keys `prompt` and `answer`, or name another source"
    )
    workflow = str(settings.take("dataflow.workflow_spec.workflow_cls", "rlvr"))
    keys, roles = _WORKFLOWS.get(workflow, ({"use": "single_turn", "chat": True}, ()))
    if workflow not in _WORKFLOWS:
        draft.todo.append(
            f"choose a workflow or an environment for {workflow!r}; single_turn is set now"
        )
    for key, value in keys.items():
        draft.put(f"workflow.{key}", value, f"workflow_cls: {workflow}" if key == "use" else "")
    for role, model in zip(roles, models * len(roles), strict=False):
        draft.put(f"workflow.{role}.policy", key_name(model))
    reward = settings.take("dataflow.workflow_spec.reward_fn")
    if reward is not None:
        if reward not in _REWARDS:
            draft.todo.append(f"choose a reward for {reward!r}; exact is set now")
        draft.put("reward.use", _REWARDS.get(reward, "exact"), f"reward_fn: {reward}")
    curator = settings.choice("dataflow.curator", {**_CURATORS, "": ""}, "")
    if curator:
        table: dict[str, Any] = {"use": curator}
        if curator == _CURATORS["greso"]:
            there = {n: k for n, k in _GRESO.items() if f"dataflow.curator_args.{n}" in settings}
            table |= {k: settings.take(f"dataflow.curator_args.{n}") for n, k in there.items()}
        draft.put("prompts.data", [table], f"curator: {curator}")
    _evaluation(settings, draft, models[0])


def _evaluation(settings: Settings, draft: Draft, model: str) -> None:
    sets = settings.below("dataflow.eval_datasets")
    every = settings.take(f"trainer_{model}.evaluator.freq_steps")
    if not sets:
        return
    draft.put("eval.every", every or 10, "evaluator.freq_steps")
    for name in sets:
        function = settings.take(f"dataflow.eval_datasets.{name}.dataset_fn")
        draft.put(f"eval.sets.{key_name(name)}.use", "jsonl")
        draft.put(f"eval.sets.{key_name(name)}.path", f"{name}.jsonl", str(function))
    times = [f"dataflow.eval_datasets.{name}.repeat" for name in sets]
    if repeats := [name for name in times if name in settings]:
        draft.put("eval.samples", settings.take(repeats[0]), repeats[0].partition("datasets.")[2])
        settings.take_same(repeats[1:], repeats[0])
    for name in settings.below("dataflow.eval_workflows"):
        start = f"dataflow.eval_workflows.{name}.gconfig_overrides.temperature"
        if start in settings:
            draft.put("eval.temperature", settings.take(start), "gconfig_overrides")
    draft.todo.append(
        f"write the evaluation sets {', '.join(f'{name}.jsonl' for name in sets)}, or remove them"
    )


def _policy(settings: Settings, draft: Draft, model: str) -> None:
    policy, trainer = f"policies.{key_name(model)}", f"trainer_{model}."
    path = settings.take(f"raas.models.{model}.model_path") or settings.take(
        "experiment.model_path", ""
    )
    draft.put(f"{policy}.model", model_reference(str(path)), "model_path")
    draft.put(
        f"{policy}.batch_sequences",
        settings.take(f"{trainer}train_batch_size", 256),
        "train_batch_size",
    )
    draft.carry(settings, {"actor.ppo_n_minibatches": f"{policy}.mini_batches"}, trainer)
    draft.put(f"{policy}.data", _policies(settings))
    _engine(settings, draft, model)
    backend = settings.choice(f"{trainer}engine.backend", _BACKENDS, "fsdp")
    draft.put(f"{policy}.trainer.use", backend, "engine.backend")
    draft.carry(settings, {"engine.data_parallel_size": f"{policy}.trainer.ranks"}, trainer)
    draft.carry(
        settings, {name: f"{policy}.trainer.{key}" for name, key in _TRAINER.items()}, trainer
    )
    betas = [
        settings.take(f"{trainer}actor.optimizer.beta{n}", 0.9 + 0.099 * (n - 1)) for n in (1, 2)
    ]
    draft.put(f"{policy}.trainer.betas", betas, "beta1, beta2")
    dtypes = {"bfloat16": "bfloat16", "float32": "float32"}
    dtype = settings.choice("experiment.dtype", dtypes, "float32")
    draft.put(f"{policy}.trainer.compute_dtype", dtype, "dtype")
    schedule = settings.choice(
        f"{trainer}actor.optimizer.lr_scheduler_type", _SCHEDULES, "constant"
    )
    draft.put(f"{policy}.trainer.schedule", schedule, "lr_scheduler_type")
    if settings.take(f"{trainer}actor.use_lora", False):
        names = {name: f"{policy}.trainer.{key}" for name, key in _LORA.items()}
        draft.carry(settings, names, f"{trainer}actor.")
    _algorithm(settings, draft, policy, trainer)
    transport = settings.choice("experiment.weight_transfer_strategies", _TRANSPORTS, "full")
    settings.choice("experiment.weight_transfer_mode", {"tcp": True}, "tcp")
    draft.put(f"{policy}.transport.use", transport, "weight_transfer_strategies")
    if f"{trainer}stats_logger.wandb.mode" in settings:
        draft.put("trackers.wandb.use", "wandb", "stats_logger.wandb")
        draft.put("trackers.wandb.mode", settings.take(f"{trainer}stats_logger.wandb.mode"), "mode")


def _policies(settings: Settings) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = []
    filters = {"filter_zero_adv": True, "keep_all": False}
    if settings.choice("dataflow.buffer.filter_function", filters, "keep_all"):
        data.append(
            {
                "use": "dynamic_sampling",
                "tolerance": 1e-5,
                "absolute_tolerance": 1e-8,
                "singletons": "drop",
            }
        )
    orders = {name: name for name in ("edf", "fifo")}
    by = settings.choice("dataflow.buffer.queue_order", orders, "edf")
    data.append({"use": "ordering", "by": by})
    ratio = settings.take("dataflow.buffer.replay_ratio", 0)
    size = settings.take("dataflow.buffer.replay_size")
    if ratio:
        data.append(
            {"use": "replay", "ratio": ratio, "selector": "latest"}
            | ({"pool_size": size} if size else {})
        )
    return data


def _engine(settings: Settings, draft: Draft, model: str) -> None:
    engine = f"policies.{key_name(model)}.engine"
    name = f"raas.models.{model}.backend"
    if name not in settings:
        name = f"engine.{model}.backend"
    use = settings.take(name, "sglang")
    settings.take_same([f"engine.{model}.backend"], name)
    draft.put(f"{engine}.use", use, "backend")
    draft.put(f"{engine}.python", f"env:{use}")
    draft.carry(settings, {f"engine.{model}.data_parallel_size": f"{engine}.replicas"})
    size = settings.take(f"engine.{model}.tensor_parallel_size")
    if size:
        draft.put(f"{engine}.tensor_parallel", size, "tensor_parallel_size")
    fraction = "memory_fraction" if use == "sglang" else "gpu_memory_utilization"
    names = {
        "context_length": "context_length",
        "mem_fraction_static": fraction,
        "max_running_requests": "max_batch",
    }
    draft.carry(settings, {name: f"{engine}.{key}" for name, key in names.items()}, "sglang.")
    draft.carry(settings, {"max_concurrent_rollouts": "raas.max_concurrent_episodes"}, "rollout.")


def _algorithm(settings: Settings, draft: Draft, policy: str, trainer: str) -> None:
    algorithm = f"{policy}.algorithm"
    threshold = settings.take(f"{trainer}actor.m2_threshold")
    draft.put(f"{algorithm}.use", "grpo" if threshold is None else "m2po")
    if threshold is not None:
        draft.put(f"{algorithm}.threshold", threshold, "m2_threshold")
    elif (low := settings.number(f"{trainer}actor.eps_clip")) is not None:
        high = settings.number(f"{trainer}actor.eps_clip_higher")
        draft.put(f"{algorithm}.clip_low", low, "eps_clip")
        draft.put(f"{algorithm}.clip_high", low if high is None else high, "eps_clip_higher")
    names = {"kl_penalty_coef": "kl_coef", "c_clip": "dual_clip"}
    draft.carry(
        settings, {name: f"{algorithm}.{key}" for name, key in names.items()}, f"{trainer}actor."
    )
    if draft.has(f"{algorithm}.kl_coef"):
        draft.put(f"{algorithm}.kl_clamp", "areal")
    norm = f"{trainer}actor.reward_norm."
    settings.choice(f"{norm}mean_level", {"group": True}, "group")
    spread = settings.choice(f"{norm}std_level", {"group": True, "": False}, "")
    draft.put(f"{algorithm}.normalize_std", spread, "reward_norm")
    norm, levels = f"{trainer}actor.adv_norm.", {"batch": True, "": False}
    if settings.choice(f"{norm}mean_level", levels, ""):
        settings.choice(f"{norm}std_level", levels, "")
        draft.put(f"{algorithm}.whiten", "token", "adv_norm")


SYSTEM = System(
    "the public AstraFlow",
    ("experiment", "dataflow"),
    read,
    {
        "experiment.fileroot": "[run] directory, by default runs/",
        "experiment.tokenizer_path": "the tokenizer is that of the model's folder",
        "experiment.experiment_name": "a run has one name, taken from trial_name",
        "raas.delta_full_sync_interval": "not needed: a receiver that lacks a delta's base fetches the whole version",
        "dataflow.host": "[dataflow] host, if RaaS run on other hosts",
        "dataflow.port": "not needed: RaaS learn the port at the start",
        "dataflow.buffer.size": "the staleness bound and back-pressure limit the buffer",
        "dataflow.curator_args": "not a key of the data policy, or a bound that it has by default",
        "dataflow.rollout_dataset.max_length": "a prompt that leaves no room for an answer fails with a reason",
        "dataflow.rollout_dataset.max_samples": "`limit` of the prompt source",
        "dataflow.workflow_spec.enable_thinking": "set it in the model's chat template",
        "dataflow.workflow_spec": "a key of its workflow",
        "dataflow.eval_workflows": "evaluation plays the workflow of the run",
        "dataflow.eval_datasets": "a key of its data set",
        "raas.models.": "all policies sample alike: the first model's settings are in [sampling]",
        "actor.eps_clip": "m2po finds its clip range for each batch",
        "actor.eps_clip_higher": "m2po finds its clip range for each batch",
        "actor.optimizer.type": "trainers have AdamW",
        "recover.mode": "a restarted run continues from its checkpoint",
        "evaluator.eval_at_start": "the first version is always evaluated",
        "gconfig.min_new_tokens": "no counterpart is known",
        "trainer_": "no counterpart is known; of several models, the first one's values are those of the run",
    },
    "docs/coming-from-astraflow.md",
)
