"""Arguments of TRL's ``GRPOConfig`` (1.16), as YAML or JSON."""

from __future__ import annotations

from typing import Any

from astraflow_contrib_init.importing.draft import Draft, System, model_reference, run_name
from astraflow_contrib_init.importing.settings import Settings

_LOSSES: dict[str, dict[str, Any]] = {
    "dapo": {"use": "grpo"},
    "grpo": {"use": "grpo", "aggregation": "seq_mean_token_mean_all_rows"},
    "dr_grpo": {"use": "dr_grpo"},
    "sapo": {"use": "sapo"},
    "cispo": {"use": "cispo"},
}
_TRAINER = {
    "learning_rate": "lr",
    "warmup_steps": "warmup_steps",
    "weight_decay": "weight_decay",
    "adam_epsilon": "eps",
    "max_grad_norm": "max_grad_norm",
    "gradient_checkpointing": "gradient_checkpointing",
    "lora_r": "lora_rank",
    "lora_alpha": "lora_alpha",
    "lora_target_modules": "lora_targets",
}
_SAMPLING = {
    "max_completion_length": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
}
_TRACKERS = ("wandb", "tensorboard", "mlflow")
_BATCH, _ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"


def read(nested: dict[str, Any]) -> tuple[Draft, Settings]:
    """The draft of a configuration, and what of ``nested`` it used."""
    settings, draft = Settings(nested), Draft()
    policy = "policies.solver"
    name = settings.take("run_name") or settings.take("output_dir") or "from-trl"
    draft.put("run.name", run_name(str(name)))
    steps = settings.take("max_steps", 100)
    if steps < 1:
        steps = 100
        draft.todo.append("set [run] steps: updates, in place of num_train_epochs; 100 are set now")
    draft.put("run.steps", steps, "max_steps")
    draft.put("run.max_staleness", 0, "TRL is on-policy; 1 lets sampling and training overlap")
    draft.carry(settings, {"num_generations": "run.group_size", "seed": "run.seed"})
    draft.carry(settings, {name: f"sampling.{key}" for name, key in _SAMPLING.items()})
    if settings.take("top_k", 0) > 0:
        draft.put("sampling.top_k", settings.take("top_k"), "top_k")
    _prompts(settings, draft)
    model = settings.take("model_name_or_path") or settings.take("model") or ""
    draft.put(f"{policy}.model", model_reference(str(model)), "model_name_or_path")
    if not model:
        draft.todo.append("name the model: a folder, or hf:OWNER/NAME")
    _batch(settings, draft, policy)
    draft.put(
        f"{policy}.engine.use", "vllm" if settings.take("use_vllm", False) else "hf", "use_vllm"
    )
    if settings.choice("vllm_mode", {"server": False, "colocate": True}, "server"):
        draft.put("run.colocated", True, "vllm_mode")
        draft.put(f"{policy}.engine.sleep_mode", True)
    if draft.tables[f"{policy}.engine"]["use"][0] == "vllm":
        draft.put(f"{policy}.engine.python", "env:vllm")
        names = {
            "gpu_memory_utilization": "gpu_memory_utilization",
            "tensor_parallel_size": "tensor_parallel",
        }
        draft.carry(settings, {n: f"{policy}.engine.{k}" for n, k in names.items()}, "vllm_")
    _trainer(settings, draft, f"{policy}.trainer")
    _algorithm(settings, draft, f"{policy}.algorithm")
    draft.put(f"{policy}.transport.use", "auto")
    if settings.choice("save_strategy", {"steps": True, "no": False}, "steps"):
        draft.carry(
            settings, {"save_steps": "checkpoint.every", "save_total_limit": "checkpoint.keep"}
        )
    _trackers(settings, draft)
    return draft, settings


def _prompts(settings: Settings, draft: Draft) -> None:
    data = settings.take("dataset_name")
    draft.put("prompts.use", "jsonl")
    draft.put("prompts.path", "train.jsonl", f"dataset_name: {data}" if data else "")
    draft.todo.append(
        "write the data set to train.jsonl, a row with `prompt` and `answer` on each line"
    )
    draft.put("workflow.use", "single_turn")
    draft.put("workflow.chat", True)
    draft.put("reward.use", "exact")
    functions = settings.take("reward_funcs")
    what = f"the functions {functions}" if functions else "your reward functions"
    draft.todo.append(f"name the reward in place of {what}; exact is set now")


def _batch(settings: Settings, draft: Draft, policy: str) -> None:
    size, steps = int(settings.take(_BATCH, 8)), int(settings.take(_ACCUMULATION, 1))
    processes = int(settings.take("num_processes", 1))
    draft.put(
        f"{policy}.batch_sequences",
        size * steps * processes,
        f"{_BATCH} x processes x {_ACCUMULATION}",
    )
    if processes == 1:
        draft.todo.append(
            f"multiply batch_sequences of {policy} by the number of processes of accelerate"
        )
    generation = settings.take("steps_per_generation")
    if generation and generation > steps and not generation % steps:
        ratio = generation // steps
        draft.put(f"{policy}.mini_batches", ratio, "steps_per_generation")
        draft.put(
            f"{policy}.batch_sequences", size * generation * processes, "with steps_per_generation"
        )


def _trainer(settings: Settings, draft: Draft, trainer: str) -> None:
    draft.put(f"{trainer}.use", "torch")
    draft.carry(settings, {name: f"{trainer}.{key}" for name, key in _TRAINER.items()})
    betas = [settings.take(f"adam_beta{n}", default) for n, default in ((1, 0.9), (2, 0.999))]
    draft.put(f"{trainer}.betas", betas, "adam_beta1, adam_beta2")
    if settings.take("bf16", False):
        draft.put(f"{trainer}.compute_dtype", "bfloat16", "bf16")
    schedule = str(settings.take("lr_scheduler_type", "linear"))
    known = {
        "linear": "linear",
        "cosine": "cosine",
        "constant": "constant",
        "constant_with_warmup": "constant",
    }
    if schedule in known:
        draft.put(f"{trainer}.schedule", known[schedule], "lr_scheduler_type")
    else:
        draft.todo.append(f"choose a schedule in place of {schedule}: constant, linear or cosine")


def _algorithm(settings: Settings, draft: Draft, algorithm: str) -> None:
    loss = str(settings.take("loss_type", "dapo"))
    keys = _LOSSES.get(loss, {"use": "grpo"})
    if loss not in _LOSSES:
        draft.todo.append(f"choose an algorithm for loss_type {loss!r}; grpo is set now")
    levels = {"token": False, "sequence": True}
    if settings.choice("importance_sampling_level", levels, "token"):
        keys = {"use": "gspo"}
    for key, value in keys.items():
        draft.put(f"{algorithm}.{key}", value, f"loss_type: {loss}" if key == "use" else "")
    if keys["use"] == "dr_grpo":
        draft.put(
            f"{algorithm}.max_tokens",
            settings.take("max_completion_length", 256),
            "max_completion_length",
        )
    draft.carry(settings, {"beta": f"{algorithm}.kl_coef"})
    low = settings.take("epsilon")
    high = settings.take("epsilon_high", low)
    if keys["use"] == "cispo":
        if high is not None:
            draft.put(f"{algorithm}.clip_high", high - 1, "epsilon_high, the largest ratio")
    elif keys["use"] != "sapo" and low is not None:
        draft.put(f"{algorithm}.clip_low", low, "epsilon")
        draft.put(f"{algorithm}.clip_high", high, "epsilon_high")
    scale = settings.take("scale_rewards", "group")
    if scale in (False, "none"):
        draft.put(f"{algorithm}.normalize_std", False, "scale_rewards")
    elif scale == "batch":
        draft.put(f"{algorithm}.std_of", "batch", "scale_rewards")


def _trackers(settings: Settings, draft: Draft) -> None:
    report = settings.take("report_to", "none")
    for name in report if isinstance(report, list) else [report]:
        if name in _TRACKERS:
            draft.put(f"trackers.{name}.use", name, "report_to")
        elif name != "none":
            settings.leave(f"report_to.{name}", name)


SYSTEM = System(
    "TRL",
    (
        "num_generations",
        "max_completion_length",
        "per_device_train_batch_size",
        "loss_type",
        "scale_rewards",
    ),
    read,
    {
        "num_iterations": "a batch is trained once; the data policy `replay` serves rows again",
        "num_train_epochs": "[run] steps counts updates",
        "max_prompt_length": "a prompt that leaves no room for an answer fails with a reason",
        "logging_": "each update is in metrics.jsonl",
        "dataset_": "a key of its data set",
        "vllm_importance_sampling": "`proximal` and `corrections` of the algorithm",
        "vllm_server": "the engine vllm is started for you; `url` names a server of your own",
        "ddp_": "not needed",
        "dataloader_": "not needed",
        "remove_unused_columns": "not needed: rewards get all columns",
    },
    "docs/coming-from-trl.md",
)
