"""What scripts do with Tinker's client; prints what they saw as a line of JSON. It imports nothing of AstraFlow."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path
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


def slope(logprobs: Any, weights: Any) -> tuple[Any, dict[str, Any]]:
    """Cross entropy, as a loss that the client traces."""
    return -(logprobs * weights).sum(), {}


def custom(service: Any, training: Any) -> dict[str, float]:
    """A loss of this script's own: one of two answers is preferred. Adam with an eps far above the gradient goes down the
    slope by a known length, ``lr / eps`` times it, so that the loss falls by that times its squared norm."""
    import torch

    pair = [datum([1, 2, 3, 7, 7]), datum([1, 2, 3, 5, 9])]

    def preference(data: Any, logprobs: list[Any]) -> tuple[Any, dict[str, float]]:
        chosen, rejected = (each[2:].sum() for each in logprobs)
        loss = -torch.nn.functional.logsigmoid(0.5 * (chosen - rejected)) + (chosen**2) / 50
        return loss, {"margin": (chosen - rejected).item()}

    step, eps = 4e-5, 1e6
    first = training.forward_backward_custom(pair, preference)
    update = training.optim_step(types.AdamParams(learning_rate=step * eps, eps=eps))
    metrics, norm = first.result().metrics, update.result().metrics["grad_norm"]
    after = training.forward_backward_custom(pair, preference).result().metrics
    handle = service.create_custom_loss(slope, input_ranks={"logprobs": 1, "weights": 1})
    sloped = [datum([1, 2, 3, 7, 7], weights=[0.0, 0.0, 1.0, 3.0])]
    handed = training.forward_backward_custom(sloped, handle.result()).result().metrics
    named = training.forward(sloped, "cross_entropy").result().metrics["loss:sum"]
    fell = metrics["loss:sum"] - after["loss:sum"]
    return {
        "fell": fell,
        "expected": step * norm**2,
        "margin": after["margin"] - metrics["margin"],
        "handed": handed["loss:sum"],
        "named": named,
    }


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


def exported(training: Any, folder: Path) -> dict[str, Any]:
    """Weights for other programs, fetched as the client's own command does, and log-probs that they must give."""
    prompt = types.ModelInput.from_ints([*PROMPT, WANTED, WANTED])
    sampler = training.save_weights_and_get_sampling_client().result()
    path = training.save_weights_external("exported", ttl_seconds=3600).result().path
    rest = tinker.RestClient()
    rest.set_checkpoint_ttl_from_tinker_path(path, 7200).result()
    folder.mkdir()
    for name, link in rest.get_external_weights_urls(path).result().urls.items():
        with urllib.request.urlopen(link, timeout=60) as reply:
            (folder / name).write_bytes(reply.read())
    rest.delete_checkpoint_from_tinker_path(path).result()
    return {
        "logprobs": sampler.compute_logprobs(prompt).result(),
        "tokenizer": str(training.get_info().model_data.tokenizer_id),
    }


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
    told["custom"] = custom(
        service, service.create_lora_training_client(base_model=MODEL, rank=0).result()
    )
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
    folder = Path(sys.argv[2])
    told["exported"] = {
        "full": exported(full, folder / "full"),
        "adapters": exported(adapters, folder / "adapters"),
    }
    runs = tinker.RestClient().list_training_runs().result()
    told["runs"] = [[run.training_run_id, run.is_lora] for run in runs.training_runs]
    service.close("success").result()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
