"""A step through the server is the step that transformers makes in float64, and that of a run to the bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file
from tinker_cases import VOCABULARY, base_model, data, in_loop, request, service
from transformers import AutoModelForCausalLM

from astraflow_contrib_tinker.recovery import recover
from astraflow_contrib_tinker.routes.numbered import NumberedRequest, put_numbered
from astraflow_contrib_tinker.service import Service
from astraflow_contrib_tinker.wire import protobuf
from astraflow_contrib_tinker.wire.datums import Array, Datum
from astraflow_contrib_tinker.wire.results import GradientResult
from astraflow_contrib_tinker.work.futures import FailedRequest
from astraflow_contrib_tinker.work.rows import rows_of
from astraflow_contrib_tinker.work.training import TrainedModel
from astraflow_core.component import Kind
from astraflow_core.errors import Refused
from astraflow_core.protocols.trainer import AdamWStep

pytestmark = pytest.mark.slow
STEP = AdamWStep(lr=1e-2, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.0, max_grad_norm=0.1)
Doubles = dict[str, torch.Tensor]


def opened(found: Service, rank: int = 0, number: int = 0) -> TrainedModel:
    model = found.create_model(found.begin({}), number, rank, 3, {})
    model.open()
    return model


def weights(model: TrainedModel, folder: Path) -> Doubles:
    model.save_weights(folder)
    return {name: t.double() for name, t in load_file(folder / "model.safetensors").items()}


def by_hand(
    folder: Path, given: list[Datum], loss: Callable[[torch.Tensor, Doubles], torch.Tensor]
) -> tuple[float, list[npt.NDArray[np.float64]], Doubles]:
    """Loss, log-probs of targets, and the weights after ``STEP``: sequence by sequence in float64."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager"
    )
    total, logprobs = torch.zeros((), dtype=torch.float64), []
    for datum in given:
        logits = model(input_ids=torch.from_numpy(datum.tokens.astype(np.int64))[None]).logits[0]
        inputs = {k: torch.from_numpy(np.asarray(v)) for k, v in datum.inputs.items()}
        targets = inputs.pop("target_tokens").reshape(len(logits), -1)
        found = logits.log_softmax(-1).gather(1, targets.clamp(min=0))
        shaped = found.reshape(datum.inputs["target_tokens"].shape)
        logprobs.append(shaped.detach().numpy())
        total = total + loss(shaped, {k: v.double() for k, v in inputs.items()})
    torch.autograd.backward(total)
    parameters = dict(model.named_parameters())
    norm = math.sqrt(sum(float((p.grad**2).sum()) for p in parameters.values()))
    scale = min(1.0, STEP.max_grad_norm / norm)
    after = {}
    for name, p in parameters.items():  # the first step of AdamW: its moments are g and g²
        g = p.grad * scale
        after[name] = (p - STEP.lr * g / (g.abs() + STEP.eps)).detach()
    return total.item(), logprobs, after


def ratio(logprobs: torch.Tensor, inputs: Doubles) -> torch.Tensor:
    return torch.exp(logprobs - inputs["logprobs"])


def sequence_ratio(logprobs: torch.Tensor, inputs: Doubles) -> torch.Tensor:
    """Of one sequence; the value is that of the whole, the gradient each target's own."""
    marked = inputs["sequence_ratio_mask"].bool()
    mean = (logprobs.detach() - inputs["logprobs"])[marked].mean()
    return torch.exp(mean) * torch.exp(logprobs - logprobs.detach())


LOSSES: dict[
    str, tuple[dict[str, float | str], Callable[[torch.Tensor, Doubles], torch.Tensor]]
] = {
    "cross_entropy": ({}, lambda lp, i: -(i["weights"] * lp).sum()),
    "importance_sampling": ({}, lambda lp, i: -(ratio(lp, i) * i["advantages"]).sum()),
    "ppo": (
        {"clip_low_threshold": 0.7},
        lambda lp, i: (
            -torch.minimum(
                ratio(lp, i) * i["advantages"],
                torch.clamp(ratio(lp, i), 0.7, 1.2) * i["advantages"],
            ).sum()
        ),
    ),
    "cispo": (
        {},
        lambda lp, i: -(torch.clamp(ratio(lp, i), 0.8, 1.2).detach() * lp * i["advantages"]).sum(),
    ),
    "gspo": (
        {"clip_low_threshold": 0.95, "clip_high_threshold": 1.2},
        lambda lp, i: (
            -torch.minimum(
                sequence_ratio(lp, i) * i["advantages"],
                torch.clamp(sequence_ratio(lp, i), 0.95, 1.2) * i["advantages"],
            ).sum()
        ),
    ),
    "dro": (
        {"beta": 0.1},
        lambda lp, i: -(lp * i["advantages"] - 0.05 * (lp - i["logprobs"]) ** 2).sum(),
    ),
}


def assert_same_step(
    result: GradientResult, model: TrainedModel, folder: Path, expected: tuple[Any, Any, Any]
) -> None:
    loss, logprobs, after = expected
    assert result.metrics["loss:sum"] == pytest.approx(loss, rel=1e-4, abs=1e-5)
    for got, wanted in zip(result.logprobs, logprobs, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-4)
    model.step(STEP)
    found = weights(model, folder)
    assert found.keys() <= after.keys() and len(found) > 20
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, after[name], rtol=0, atol=2e-5, msg=name)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_is_that_of_the_loss_in_float64(loss: str, tmp_path: Path) -> None:
    found = service(tmp_path, micro_batch_tokens=20)
    config, formula = LOSSES[loss]
    model, given = opened(found), data()
    looked_at = model.gradient(request(loss, data(9), config, backward=False))
    assert np.isfinite(looked_at.metrics["loss:sum"])
    results = [
        model.gradient(request(loss, given[part], config)) for part in (slice(2), slice(2, 4))
    ]
    whole = GradientResult(
        [array for result in results for array in result.logprobs],
        {"loss:sum": sum(result.metrics["loss:sum"] for result in results)},
    )
    assert_same_step(whole, model, tmp_path / "after", by_hand(found.base.folder, given, formula))
    model.close()


def test_targets_that_are_not_the_next_token_are_right_too(tmp_path: Path) -> None:
    found, rng = service(tmp_path), np.random.default_rng(1)
    model = opened(found)
    given = data(count=3)
    other = given[0].inputs["target_tokens"].copy()
    other[2:4] = rng.integers(1, VOCABULARY, 2)
    given[0].inputs["target_tokens"] = other
    several: dict[str, Array] = {
        "target_tokens": rng.integers(1, VOCABULARY, (len(given[1].tokens), 3)),
        "weights": rng.random((len(given[1].tokens), 3)).astype(np.float32),
    }
    given[1] = replace(given[1], inputs=several)
    expected = by_hand(found.base.folder, given, LOSSES["cross_entropy"][1])
    result = model.gradient(request("cross_entropy", given))
    assert_same_step(result, model, tmp_path / "after", expected)
    model.close()


def test_an_algorithm_by_name_is_the_one_of_a_run(tmp_path: Path) -> None:
    base = base_model(tmp_path, lr=STEP.lr, betas=STEP.betas, eps=STEP.eps, max_grad_norm=0.1)
    found, given = service(tmp_path), data()
    model = opened(found)
    config: dict[str, float | str] = {"clip_low": 0.1, "entropy_coef": 0.05, "max_tokens": 5.0}
    result = model.gradient(request("dr_grpo", given, config))
    model.step(STEP)
    selected, keys = base.catalog.validate_options(
        Kind.ALGORITHM, "dr_grpo", {**config, "max_tokens": 5}, "algorithm"
    )
    algorithm = selected.build(keys, base.context("trainer", 3))
    native = base.build_trainer(0, 3)
    rows = rows_of(given, VOCABULARY, base.config.positions)
    mask = rows.column(given, "weights") != 0
    batch = replace(
        rows.batch,
        loss_mask=mask,
        logprobs=rows.column(given, "logprobs"),
        advantages=rows.column(given, "advantages"),
    )
    batch = replace(batch, weights=algorithm.weights(batch))
    metrics = native.step(batch, algorithm, 0)
    assert result.metrics["loss:sum"] == metrics["loss"]
    assert result.metrics["entropy_estimate:mean"] == pytest.approx(metrics["entropy_estimate"])
    native.save_model(tmp_path / "native")
    model.save_weights(tmp_path / "door")
    one, other = (load_file(tmp_path / n / "model.safetensors") for n in ("native", "door"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    for each in (native, model):
        each.close()


def test_what_a_loss_lacks_is_named(tmp_path: Path) -> None:
    model, given = opened(service(tmp_path)), data(count=2)

    def refused(loss: str, left_out: str = "", **config: float | str) -> str:
        fewer = [
            replace(d, inputs={k: v for k, v in d.inputs.items() if k != left_out}) for d in given
        ]
        with pytest.raises(Refused) as error:
            model.gradient(request(loss, fewer, config))
        return str(error.value)

    assert "ppo needs data[0].loss_fn_inputs['advantages']" in refused("ppo", "advantages")
    assert "known are clip_low_threshold" in refused("ppo", beta=1.0)
    assert "loss_fn_config.beta: expected a number" in refused("dro")
    assert "unknown loss_fn 'nothing': known are cross_entropy" in refused("nothing")
    assert "gspo needs data[0].loss_fn_inputs['sequence_ratio_mask']" in refused(
        "gspo", "sequence_ratio_mask"
    )
    assert "clip_lwo" in refused("dr_grpo", clip_lwo=0.1)
    assert "opd needs reference" in refused("opd") and "reference_logprobs" in refused("opd")
    length = len(given[0].tokens)
    for name, changed, said in (
        ("sequence_ratio_mask", np.zeros(length, np.float32), "mask is 0 everywhere"),
        ("target_tokens", (given[0].inputs["target_tokens"] + 1) % VOCABULARY, "the next token"),
    ):
        bad = replace(given[0], inputs={**given[0].inputs, name: changed})
        with pytest.raises(Refused, match=said):
            model.gradient(request("gspo", [bad]))
    length = len(given[0].tokens)
    for value, said in ((np.nan, r"data\[0\].weights has a value"), (3e38, "is dropped; send all")):
        bad = {**given[0].inputs, "weights": np.full(length, value, np.float32)}
        with pytest.raises(Refused, match=said):
            model.gradient(request("cross_entropy", [replace(given[0], inputs=bad)]))
    with pytest.raises(ValueError, match="no gradient is held"):
        model.step(STEP)
    model.close()


def test_states_with_and_without_the_optimizer(tmp_path: Path) -> None:
    """Adapters: what they do not train stays, and a state goes on as it would have."""

    async def scenario() -> None:
        found = service(tmp_path)
        model, other = opened(found, rank=2), opened(found, rank=2, number=1)
        start = weights(model, tmp_path / "start")
        ask = request("cross_entropy", data())
        model.gradient(ask)
        model.step(STEP)
        saved = await found.save(model, "weights", "one", False)
        assert found.store.find(saved.path, "weights")[0].lora_rank == 2 and saved.size > 1000
        _, folder = found.store.find(saved.path, "weights")
        after: list[Doubles] = []
        for number, (each, optimizer) in enumerate(
            ((model, None), (other, True), (model, True), (other, False))
        ):
            if optimizer is not None:
                each.load_state(folder, optimizer)
            each.gradient(ask)
            each.step(STEP)
            after.append(weights(each, tmp_path / f"after-{number}"))
        for name, tensor in after[0].items():
            assert torch.equal(tensor, after[1][name]) and torch.equal(tensor, after[2][name])
        differs = [n for n in start if not torch.equal(after[0][n], after[3][n])]
        assert differs and all(".layers." in name for name in differs)
        assert torch.equal(
            start["model.embed_tokens.weight"], after[0]["model.embed_tokens.weight"]
        )
        with pytest.raises(Refused, match="exists"):
            await found.save(model, "weights", "one", False)
        with pytest.raises(Refused, match="at most 100"):
            await found.save(model, "weights", "../one", False)
        await found.close()

    in_loop(scenario())


def test_a_server_that_starts_makes_the_steps_of_one_that_did_not_end(tmp_path: Path) -> None:
    """A loss that is infinite has dropped the gradient that was held: it does so again."""

    def body(model: TrainedModel, number: int, weight: float) -> bytes:
        asked = protobuf.ForwardBackwardRequest(
            model_id=model.id, seq_id=number, loss_fn="cross_entropy"
        )
        datum = asked.data.add()
        datum.model_input.add().encoded_text.tokens = np.array([3, 4], "<i4").tobytes()
        for name, given in (
            ("target_tokens", np.array([4, 5], "<i8")),
            ("weights", np.array([weight, 1], "<f4")),
        ):
            tensor = datum.loss_fn_inputs.add(key=name).value
            tensor.dense, tensor.dtype = given.tobytes(), 1 + (given.dtype.kind == "i")
        return bytes(asked.SerializeToString())

    async def sent(found: Service, model: TrainedModel, number: int, weight: float) -> object:
        asked = NumberedRequest("forward_backward", body(model, number, weight), json=False)
        promise = await put_numbered(found, asked)
        return (await found.promises.fetch(promise.id)).outcome

    async def scenario() -> None:
        first = service(tmp_path, keep_every=9)
        model = first.create_model(first.begin({}), 0, 0, 3, {})
        model.creation = first.opened(model, None, True, None)
        outcomes = [await sent(first, model, n, w) for n, w in ((1, 5.0), (2, 3e38), (3, 0.5))]
        assert isinstance(outcomes[1], FailedRequest) and isinstance(outcomes[2], GradientResult)
        model.step(STEP)
        second = service(tmp_path, keep_every=9)
        assert recover(second) == [model.id]
        again = second.model(model.id)
        repeated = await sent(second, again, 3, 0.5)
        assert isinstance(repeated, GradientResult)
        np.testing.assert_array_equal(repeated.logprobs[0], outcomes[2].logprobs[0])
        again.step(STEP)
        expected, found = (weights(m, tmp_path / n) for m, n in ((model, "a"), (again, "b")))
        assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())
        await first.close()
        await second.close()

    in_loop(scenario())
