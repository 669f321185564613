"""The quickstart's task, learned by a script that is written for Tinker: nothing here is of AstraFlow but the loss's name.

    astraflow tinker serve            # prints two lines to set where this runs
    pip install tinker numpy
    python examples/tinker/train.py

A tiny model, random at the start, learns the nine's complement of five digits: "x12345=" -> "87654".
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tinker
from tinker import types

DIGITS = 5
COMPLEMENT = str.maketrans("0123456789", "9876543210")
LOSS = {"entropy_coef": 0.1, "clip_low": 0.2, "clip_high": 0.28}
"""Of the algorithm grpo; without the bonus for entropy the model settles on a few answers before it has learned."""


def main() -> None:
    """Train, and print the mean reward of each step and the share of right answers to prompts that were never trained."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="astraflow/tiny")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--prompts", type=int, default=32, help="of a step")
    parser.add_argument("--samples", type=int, default=16, help="of a prompt")
    parser.add_argument("--held-out", type=int, default=256, help="prompts of the last evaluation")
    chosen = parser.parse_args()

    service = tinker.ServiceClient()
    training = service.create_lora_training_client(base_model=chosen.model, rank=0).result()
    tokenizer = training.get_tokenizer()
    draw = random.Random(0)
    started = time.monotonic()
    for step in range(chosen.steps):
        sampler = training.save_weights_and_get_sampling_client().result()
        questions = [question(draw, held_out=False) for _ in range(chosen.prompts)]
        params = types.SamplingParams(max_tokens=DIGITS + 1, temperature=1.0)
        prompts = [tokenizer.encode(f"x{each}=", add_special_tokens=False) for each in questions]
        asked = [
            sampler.sample(types.ModelInput.from_ints(prompt), chosen.samples, params)
            for prompt in prompts
        ]
        data, rewards = [], []
        for text, prompt, future in zip(questions, prompts, asked, strict=True):
            wanted = [
                *tokenizer.encode(text.translate(COMPLEMENT), add_special_tokens=False),
                tokenizer.eos_token_id,
            ]
            sequences = future.result().sequences
            group = np.array([reward(sequence.tokens, wanted) for sequence in sequences])
            rewards.append(group.mean())
            if group.std() == 0:
                continue  # nothing to compare
            advantages = (group - group.mean()) / (group.std(ddof=1) + 1e-4)
            data += [
                datum(prompt, sequence, advantage)
                for sequence, advantage in zip(sequences, advantages, strict=True)
            ]
        say(f"step {step}: reward {np.mean(rewards):.3f} after {time.monotonic() - started:.0f} s")
        if not data:
            continue
        gradient = training.forward_backward(data, "grpo", loss_fn_config=loss(step))
        update = training.optim_step(adam(step, chosen.steps))
        gradient.result()
        update.result()
    if chosen.held_out:
        right = evaluate(
            training, tokenizer, [question(draw, held_out=True) for _ in range(chosen.held_out)]
        )
        say(f"held out: {right:.3f} right")
    service.close("success").result()


def question(draw: random.Random, *, held_out: bool) -> str:
    """Five digits; a tenth of them are never trained."""
    while True:
        text = "".join(draw.choice("0123456789") for _ in range(DIGITS))
        if (int(text) % 97 % 10 == 3) == held_out:
            return text


def reward(tokens: Sequence[int], wanted: Sequence[int]) -> float:
    """Share of positions that are right, the end included."""
    right = sum(one == other for one, other in zip(tokens, wanted, strict=False))
    return right / max(len(tokens), len(wanted))


def datum(prompt: Sequence[int], sequence: types.SampledSequence, advantage: float) -> types.Datum:
    """A sampled sequence with what a loss on sampled tokens needs."""
    tokens, before = [*prompt, *sequence.tokens], len(prompt) - 1
    nothing = np.zeros(before, np.float32)
    given = {
        "target_tokens": np.array(tokens[1:], np.int64),
        "logprobs": np.concatenate([nothing, np.array(sequence.logprobs, np.float32)]),
        "advantages": np.concatenate(
            [nothing, np.full(len(sequence.tokens), advantage, np.float32)]
        ),
        "mask": np.concatenate([nothing, np.ones(len(sequence.tokens), np.float32)]),
    }
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=given)


def loss(step: int) -> dict[str, float]:
    """The bonus falls to nothing from step 40 to step 80."""
    return {**LOSS, "entropy_coef": LOSS["entropy_coef"] * min(1.0, max(0.0, (80 - step) / 40))}


def adam(step: int, steps: int) -> types.AdamParams:
    """Five steps of warm-up, then down to a tenth."""
    left = 1 - 0.9 * step / max(1, steps)
    return types.AdamParams(
        learning_rate=1.5e-3 * min((step + 1) / 5, left), beta2=0.95, eps=1e-8, grad_clip_norm=1.0
    )


def evaluate(training: tinker.TrainingClient, tokenizer: Any, texts: Sequence[str]) -> float:
    """Share of prompts that are answered right, greedily."""
    sampler = training.save_weights_and_get_sampling_client().result()
    params = types.SamplingParams(max_tokens=DIGITS + 1, temperature=0.0)
    futures = [
        sampler.sample(
            types.ModelInput.from_ints(tokenizer.encode(f"x{text}=", add_special_tokens=False)),
            1,
            params,
        )
        for text in texts
    ]
    answers = [
        tokenizer.decode(f.result().sequences[0].tokens, skip_special_tokens=True) for f in futures
    ]
    right = [a == t.translate(COMPLEMENT) for a, t in zip(answers, texts, strict=True)]
    return float(np.mean(right))


def say(line: str) -> None:
    """Print a line and flush it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
