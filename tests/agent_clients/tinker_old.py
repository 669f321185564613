"""What scripts do with older clients of Tinker, which give some results at once; prints what it saw as a line of JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import tinker
from tinker import types
from tinker_play import MODEL, PROMPT, WANTED, datum, sample


def done(value: Any) -> Any:
    """The value, or the result of a future."""
    return value.result() if hasattr(value, "result") else value


def step(training: Any, data: list[types.Datum], loss: str) -> float:
    """One optimizer step; the loss before it."""
    gradient = training.forward_backward(data, loss)
    update = training.optim_step(types.AdamParams(learning_rate=2e-2))
    assert done(update).metrics is not None
    return float(done(gradient).metrics["loss:sum"])


def main() -> None:
    service = tinker.ServiceClient()
    training = done(service.create_lora_training_client(base_model=MODEL, rank=0))
    wanted = [datum([*PROMPT, WANTED, WANTED], weights=[0.0, 0.0, 1.0, 1.0])]
    losses = [step(training, wanted, "cross_entropy") for _ in range(6)]
    saved = done(training.save_state("old")).path
    sampler = done(training.save_weights_and_get_sampling_client())
    greedy = sample(sampler, 1, temperature=0.0)[0]
    reward = [0.0, 0.0] + [1.0] * len(greedy.tokens)
    logprobs = [0.0, 0.0, *greedy.logprobs]
    step(training, [datum([*PROMPT, *greedy.tokens], logprobs=logprobs, advantages=reward)], "ppo")
    after = done(training.forward(wanted, "cross_entropy")).metrics["loss:sum"]
    done(training.load_state_with_optimizer(saved))
    before = done(training.forward(wanted, "cross_entropy")).metrics["loss:sum"]
    said = ""
    try:
        done(training.forward(wanted, "nothing"))
    except (tinker.APIError, tinker.TinkerError, ValueError) as error:
        said = str(error)
    told = {"version": tinker.__version__, "losses": losses, "greedy": list(greedy.tokens)}
    told |= {"moved": abs(after - before), "fell": losses[0] - before, "said": said}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
