"""The quickstart's job in TRL's ``GRPOTrainer``: the program that the other side of ``bench.peer`` runs.

Restates nothing: the trainer is TRL as published (``trl_requirements.txt``), in an environment of its own,
which has neither this repository nor AstraFlow in it. ``python trl_grpo.py JOB FILE`` reads the job, as
``bench.peer`` wrote it, from JSON, and appends a line of JSON to FILE for every evaluation and for the
first update.

The same on both sides: the folder with the start weights, the prompts in their order, prompts × group,
one update per batch, AdamW (fused) and its keys, the learning rate of every update, the clip of the
gradient's norm, advantages, token mean, clip of the ratio, the entropy bonus of every update, reward,
sampling, float32, and the greedy evaluation: the same prompts after the same updates, counted in the time.

What is set in favour of TRL:

- batched generation, and the whole batch in one forward pass (with two or four micro-batches it took as much
  CPU: 0.46 to 0.49 s an update on one core, 30 updates, three runs each);
- gradient checkpointing and bfloat16 off (both are on by default, and cost it a third more);
- no log, no progress bar, no checkpoint, no report, no reference model (``beta = 0``), no second pass for
  the old log-probs (one update per generation), the dataset in memory in its final order;
- glibc configured to keep freed memory, which avoids page faults (0.46 instead of 0.56 CPU seconds an update);
- with two threads, one that waits sleeps (``OMP_WAIT_POLICY=passive``): on a machine that others use too,
  the default of spinning took 0.95 CPU seconds an update instead of 0.57, and longer.

What remains different is what is compared: TRL generates and trains in turn in one process, on policy.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

Job = dict[str, Any]


def text_and_end(ids: list[int], tokenizer: Any) -> tuple[str, bool]:
    """What was written before the end, and whether it was ended. A sampled pad counts as text, so
    ``decode`` will not do."""
    stopped = tokenizer.eos_token_id in ids
    written = ids[: ids.index(tokenizer.eos_token_id)] if stopped else ids
    return "".join(tokenizer.convert_ids_to_tokens(written)), stopped


def matching_positions(text: str, stopped: bool, answer: str) -> float:
    """The reward ``exact`` with ``partial = "positions"``."""
    agreeing = sum(a == b for a, b in zip(text, answer, strict=False))
    agreeing += stopped and len(text) == len(answer)
    return float(agreeing / max(len(text) + stopped, len(answer) + 1))


def lr_factor(job: Job, step: int) -> float:
    """The quickstart's schedule: linear warm-up, then linear decay to ``min_lr_ratio``."""
    if step < job["warmup_steps"]:
        return (step + 1) / float(job["warmup_steps"])
    progress = (step - job["warmup_steps"]) / max(1, job["steps"] - job["warmup_steps"])
    return float(job["min_lr_ratio"] + (1 - job["min_lr_ratio"]) * (1 - min(1.0, progress)))


def entropy_coef(job: Job, step: int) -> float:
    """Between the knots of the quickstart's ``entropy_coef``."""
    (first, value), *rest = job["entropy_coef"]
    for at, following in rest:
        if step < at:
            share = max(0.0, step - first) / (at - first)
            return float(value + share * (following - value))
        first, value = at, following
    return float(value)


class Course(TrainerCallback):  # type: ignore[misc]
    """Sets the entropy bonus of every update, and evaluates as often as the quickstart does."""

    def __init__(self, job: Job, tokenizer: Any, file: Path) -> None:
        self.job, self.tokenizer, self.file = job, tokenizer, file
        self.trainer: Any = None
        rows = job["held_out"]
        self.answers = [row["answer"] for row in rows]
        self.inputs = tokenizer([row["prompt"] for row in rows], return_tensors="pt", padding=True)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._evaluate(0)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.entropy_coef = entropy_coef(self.job, state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 1:
            self._log_line({"step": 1})
        if state.global_step % self.job["eval_every"] == 0:
            self._evaluate(state.global_step)

    def _evaluate(self, step: int) -> None:
        model = self.trainer.model
        model.eval()
        with torch.inference_mode():
            out = model.generate(
                **self.inputs, do_sample=False, max_new_tokens=self.job["max_tokens"]
            )
        model.train()
        completions = out[:, self.inputs["input_ids"].shape[1] :].tolist()
        right = sum(
            matching_positions(*text_and_end(ids, self.tokenizer), answer) == 1
            for ids, answer in zip(completions, self.answers, strict=True)
        )
        self._log_line({"step": step, "accuracy": right / len(self.answers)})

    def _log_line(self, line: dict[str, float]) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps({"time": time.time(), **line}) + "\n")


def main() -> None:
    """Train until the planned updates are made, or until the process is stopped."""
    import trl  # only that environment has these two
    from datasets import Dataset

    job: Job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["threads"])
    tokenizer = AutoTokenizer.from_pretrained(job["model"], padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)

    def reward(completion_ids: list[list[int]], answer: list[str], **_: Any) -> list[float]:
        return [
            matching_positions(*text_and_end(ids, tokenizer), right)
            for ids, right in zip(completion_ids, answer, strict=True)
        ]

    config = trl.GRPOConfig(
        output_dir=str(Path(sys.argv[2]).with_suffix(".trl")),
        seed=job["seed"],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_steps=job["steps"],
        per_device_train_batch_size=job["batch_sequences"],
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_generations=job["group_size"],
        num_iterations=1,
        max_completion_length=job["max_tokens"],
        temperature=job["temperature"],
        beta=0.0,
        loss_type="dapo",
        scale_rewards="group",
        epsilon=job["clip_low"],
        epsilon_high=job["clip_high"],
        entropy_coef=entropy_coef(job, 0),
        max_grad_norm=job["max_grad_norm"],
        shuffle_dataset=False,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=job["lr"],
        betas=tuple(job["betas"]),
        weight_decay=job["weight_decay"],
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_factor(job, step))
    course = Course(job, tokenizer, Path(sys.argv[2]))
    course.trainer = trl.GRPOTrainer(
        model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(job["prompts"]),
        processing_class=tokenizer,
        callbacks=[course],
        optimizers=(optimizer, schedule),
    )
    course.trainer.train()


if __name__ == "__main__":
    main()
