"""A script that trains while its server is killed and started again; prints a line of JSON for each step."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tinker
from tinker import types
from tinker_play import MODEL, datum, sample

STEPS, KILLED_AT = 4, 3


def train(service: Any, name: str) -> None:
    """The same steps each time: two gradients for each, so that one may be held when the server ends."""
    training = service.create_lora_training_client(base_model=MODEL, rank=0, seed=1).result()
    sampler = training.save_weights_and_get_sampling_client().result()
    for step in range(STEPS):
        gradients = [
            training.forward_backward([datum([1, 2, 3, last], weights=[0.0, 0.0, 1.0])], "cross_entropy")
            for last in (7, 5)
        ]  # fmt: skip
        losses = [gradient.result().metrics["loss:sum"] for gradient in gradients]
        say(name, step, losses)
        if name == "killed" and step == KILLED_AT:
            sys.stdin.readline()  # the server is killed before this goes on
        training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    say(name, STEPS, [len(sequence.tokens) for sequence in sample(sampler, 2)])
    saved = training.save_state("end").result().path
    again = service.create_training_client_from_state_with_optimizer(saved).result()
    last = [datum([1, 2, 3, 7], weights=[0.0, 0.0, 1.0])]
    say(name, STEPS + 1, [again.forward(last, "cross_entropy").result().metrics["loss:sum"]])


def say(name: str, step: int, values: list[float]) -> None:
    """Print what a step gave."""
    sys.stdout.write(json.dumps([name, step, np.round(values, 6).tolist()]) + "\n")
    sys.stdout.flush()


def main() -> None:
    service = tinker.ServiceClient()
    train(service, "whole")
    train(service, "killed")
    service.close("success").result()


if __name__ == "__main__":
    main()
