"""Configurations of prime-rl: ``rl.toml``, and others laid over it."""

from __future__ import annotations

from typing import Any

from astraflow_contrib_init.importing.draft import Draft, System, model_reference, run_name
from astraflow_contrib_init.importing.settings import Settings

_TRAINER = {
    "optim.lr": "lr",
    "optim.weight_decay": "weight_decay",
    "optim.max_norm": "max_grad_norm",
    "scheduler.warmup_steps": "warmup_steps",
}
_LOSS = {
    "dppo_mask_low": "mask_low",
    "dppo_mask_high": "mask_high",
    "adv_tau": "advantage_coef",
    "kl_tau": "ratio_coef",
}
_VLLM = {
    "max_model_len": "context_length",
    "tensor_parallel_size": "tensor_parallel",
    "gpu_memory_utilization": "gpu_memory_utilization",
}
_BEHIND = 8
"""``max_off_policy_steps`` by default."""


def read(nested: dict[str, Any]) -> tuple[Draft, Settings]:
    """The draft of a configuration, and what of ``nested`` it used."""
    settings, draft = Settings(nested), Draft()
    policy = "policies.solver"
    wandb = "monitors.wandb." if settings.below("monitors.wandb") else "wandb."
    named = (f"{wandb}name", "run.name", f"{wandb}project")
    name = next((settings.take(each) for each in named if each in settings), "from-prime-rl")
    draft.put("run.name", run_name(str(name)))
    draft.put("run.steps", settings.take("max_steps", 100), "max_steps")
    behind = settings.take("max_off_policy_steps") or settings.take(
        "orchestrator.max_off_policy_steps", _BEHIND
    )
    draft.put(
        "run.max_staleness",
        behind + 1,
        f"max_off_policy_steps = {behind}, counted from the next version",
    )
    draft.carry(settings, {"group_size": "run.group_size", "seed": "run.seed"}, "orchestrator.")
    names = {"max_completion_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p"}
    draft.carry(
        settings, {n: f"sampling.{k}" for n, k in names.items()}, "orchestrator.train.sampling."
    )
    _environments(settings, draft)
    model = settings.take("model.name") or settings.take("trainer.model.name", "")
    draft.put(f"{policy}.model", model_reference(str(model)), "model.name")
    draft.put(
        f"{policy}.batch_sequences",
        settings.take("orchestrator.batch_size", 128),
        "orchestrator.batch_size",
    )
    draft.put(f"{policy}.engine.use", "vllm")
    draft.put(f"{policy}.engine.python", "env:vllm")
    draft.carry(settings, {"max_model_len": f"{policy}.engine.context_length"}, "inference.model.")
    draft.carry(settings, {n: f"{policy}.engine.{k}" for n, k in _VLLM.items()}, "inference.vllm.")
    draft.carry(settings, {"tp": f"{policy}.engine.tensor_parallel"}, "inference.parallel.")
    draft.carry(settings, {"num_infer_gpus": f"{policy}.engine.replicas"}, "deployment.")
    ranks = int(settings.take("deployment.num_train_gpus", 1))
    draft.put(f"{policy}.trainer.use", "fsdp" if ranks > 1 else "torch", "num_train_gpus")
    if ranks > 1:
        draft.put(f"{policy}.trainer.ranks", ranks)
    draft.carry(settings, {n: f"{policy}.trainer.{k}" for n, k in _TRAINER.items()}, "trainer.")
    draft.put(f"{policy}.trainer.compute_dtype", "bfloat16")
    draft.put(f"{policy}.algorithm.use", "prime_rl")
    draft.carry(settings, {n: f"{policy}.algorithm.{k}" for n, k in _LOSS.items()}, "trainer.loss.")
    draft.put(f"{policy}.transport.use", "http")
    draft.carry(settings, {"interval": "checkpoint.every", "keep_last": "checkpoint.keep"}, "ckpt.")
    if f"{wandb}project" in settings:
        draft.put("trackers.wandb.use", "wandb")
        draft.carry(
            settings, {"project": "trackers.wandb.project", "name": "trackers.wandb.name"}, wandb
        )
    return draft, settings


def _environments(settings: Settings, draft: Draft) -> None:
    draft.put("prompts.use", "verifiers")
    draft.put("workflow.use", "verifiers")
    where = "orchestrator.train.env"
    if where not in settings:
        where = "orchestrator.train.source"
    found = settings.take(where) or []
    names = [_environment(table) for table in found if isinstance(table, dict)]
    for number, table in enumerate(table for table in found if isinstance(table, dict)):
        for name, value in _unused(table, number > 0):
            settings.leave(f"{where}.{number}.{name}", value)
    if names:
        draft.put("prompts.environment", names[0][0].replace("-", "_"), "taskset.id")
        if names[0][1]:
            draft.put("prompts.arguments", names[0][1])
    else:
        draft.put("prompts.environment", "my_environment")
        draft.todo.append("name the module of the environment in [prompts] environment")
    if len(names) > 1:
        others = ", ".join(name for name, _ in names[1:])
        draft.todo.append(
            f"add the environments {others}: the prompt source `merged` combines several"
        )
    draft.todo.append(
        "astraflow env create verifiers --plugin verifiers, with the environments' packages installed in it"
    )


def _unused(table: dict[str, Any], whole: bool) -> list[tuple[str, Any]]:
    """What :func:`_environment` does not use of an environment; of another one than the first it uses the name alone."""
    inner = table.get("env", table)
    tasks = inner.get("taskset") if isinstance(inner, dict) else None
    named = isinstance(tasks, dict) and "id" in tasks
    used = {"env", *(() if whole else ("taskset",)), *(() if named or whole else ("name", "id"))}
    parts = [(name, value) for name, value in table.items() if name not in used]
    if inner is not table and isinstance(inner, dict):
        parts += [(f"env.{name}", value) for name, value in inner.items() if name not in used]
    return parts


def _environment(table: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Its module, and the arguments of its tasks."""
    inner = table.get("env", table)
    tasks = inner.get("taskset", {}) if isinstance(inner, dict) else {}
    if not isinstance(tasks, dict):
        tasks = {}
    name = tasks.get("id") or table.get("id") or table.get("name") or "my_environment"
    return str(name), {key: value for key, value in tasks.items() if key != "id"}


SYSTEM = System(
    "prime-rl",
    ("orchestrator", "inference", "deployment"),
    read,
    {
        "seq_len": "[sampling] max_tokens, and context_length of the engine",
        "orchestrator.seq_len": "[sampling] max_tokens, and context_length of the engine",
        "trainer.model.seq_len": "rows are packed up to micro_batch_tokens of the trainer",
        "orchestrator.renderer": "`renderer` and `tokenizers` of the workflow verifiers",
        "orchestrator.eval": "[eval] with sets of their own",
        "inference": "a key of vLLM: `arguments` of the engine",
        "ckpt.resume_step": "astraflow run --resume DIRECTORY",
        "deployment": "trainer.ranks, engine.replicas and the launcher",
        "slurm": '[launcher] use = "slurm"',
    },
    "docs/coming-from-prime-rl.md",
)
