"""What scripts do with Tinker's client; prints what they saw as a line of JSON. It imports nothing of AstraFlow."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tinker
from tinker import types

PROMPT, WANTED, LENGTH = [1, 2, 3], 7, 4
MODEL = "astraflow/tiny"


def datum(tokens: list[int], **inputs: Any) -> types.Datum:
    given = {"target_tokens": np.array(tokens[1:], np.int64)}
    given |= {name: np.array(value, np.float32) for name, value in inputs.items()}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=given)


def sample(sampler: Any, count: int, **params: Any) -> Any:
    chosen = types.SamplingParams(max_tokens=LENGTH, **params)
    return sampler.sample(types.ModelInput.from_ints(PROMPT), count, chosen).result().sequences


def learn(training: Any, steps: int) -> list[float]:
    """Reinforcement: the share of tokens that are the wanted one."""
    rewards, nothing = [], [0.0] * (len(PROMPT) - 1)
    for step in range(steps):
        sampler = training.save_weights_and_get_sampling_client().result()
        sequences = sample(sampler, 32, temperature=1.0)
        each = np.array([np.mean(np.array(s.tokens) == WANTED) for s in sequences])
        rewards.append(float(each.mean()))
        data = [
            datum(
                PROMPT + list(s.tokens),
                logprobs=nothing + list(s.logprobs),
                advantages=nothing + [gain] * len(s.tokens),
            )
            for s, gain in zip(sequences, each - each.mean(), strict=True)
        ]
        loss = ("ppo", "importance_sampling", "cispo")[step % 3]
        gradient = training.forward_backward(data, loss)
        update = training.optim_step(types.AdamParams(learning_rate=2e-2))
        assert len(gradient.result().loss_fn_outputs) == len(data)
        update.result()
    return rewards


def states(service: Any, training: Any) -> dict[str, Any]:
    """Save, train on, and go back in a new client."""
    given = [datum([1, 2, 3, 7], weights=[1.0, 1.0, 1.0])]

    def on(client: Any) -> float:
        client.forward_backward(given, "cross_entropy").result()
        client.optim_step(types.AdamParams(learning_rate=1e-3)).result()
        return float(client.forward(given, "cross_entropy").result().metrics["loss:sum"])

    on(training)  # so that the optimizer has something to remember
    path = training.save_state("state").result().path
    once = on(training)
    again = on(service.create_training_client_from_state_with_optimizer(path).result())
    fresh = on(service.create_training_client_from_state(path).result())
    return {"path": path, "once": once, "again": again, "fresh": fresh}


def errors(service: Any, training: Any) -> dict[str, str]:
    """How mistakes look in the client."""
    sampler = service.create_sampling_client(base_model=MODEL).result()
    prompt = types.ModelInput.from_ints(PROMPT)
    mistakes = {
        "model": lambda: service.create_lora_training_client(base_model="other/model").result(),
        "loss": lambda: training.forward_backward([datum([1, 2, 3])], "nothing").result(),
        "shape": lambda: training.forward(
            [datum([1, 2, 3], weights=[1.0])], "cross_entropy"
        ).result(),
        "seed": lambda: sampler.sample(prompt, 1, types.SamplingParams(seed=1)).result(),
        "long": lambda: sampler.sample(prompt, 1, types.SamplingParams(max_tokens=999)).result(),
        "path": lambda: service.create_sampling_client(
            model_path="tinker://a/sampler_weights/b"
        ).result(),
        "step": lambda: training.optim_step(types.AdamParams()).result(),
    }
    told = {}
    for name, mistake in mistakes.items():
        try:
            mistake()
        except (tinker.APIError, tinker.TinkerError, ValueError) as error:
            told[name] = str(error)
    return told


def main() -> None:
    steps = int(sys.argv[1])
    service = tinker.ServiceClient()
    offered = tinker.RestClient().get_server_capabilities().result().supported_models[0]
    full = service.create_lora_training_client(base_model=MODEL, rank=0).result()
    told: dict[str, Any] = {"model": offered.model_name, "full": learn(full, steps)}
    adapters = service.create_lora_training_client(base_model=MODEL, rank=4).result()
    info = adapters.get_info()
    told["adapters"] = {
        "is_lora": info.is_lora,
        "rank": info.lora_rank,
        "vocabulary": len(adapters.get_tokenizer()),
    }
    told["states"] = states(service, adapters)
    named = full.save_weights_for_sampler("named").result().path
    sampler = service.create_sampling_client(model_path=named).result()
    told["greedy"] = list(sample(sampler, 1, temperature=0.0)[0].tokens)
    stopped = sample(sampler, 1, temperature=0.0, stop=[WANTED])[0]
    told["stopped"] = [stopped.stop_reason, list(stopped.tokens)]
    told["prompt"] = sampler.compute_logprobs(
        types.ModelInput.from_ints([*PROMPT, WANTED])
    ).result()
    follows = full.save_weights_and_get_sampling_client(kind="inflight").result()
    told["follows"] = len(sample(follows, 2))
    many = [datum([1, 2, 3, 7], weights=[0.0, 0.0, 1.0])] * 2500
    chunks = full.forward(many, "cross_entropy").result()
    told["chunks"] = [len(chunks.loss_fn_outputs), float(chunks.metrics["loss:sum"])]
    told["one"] = float(full.forward(many[:1], "cross_entropy").result().metrics["loss:sum"])
    told["errors"] = errors(service, full)
    runs = tinker.RestClient().list_training_runs().result()
    told["runs"] = [[run.training_run_id, run.is_lora] for run in runs.training_runs]
    service.close("success").result()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
