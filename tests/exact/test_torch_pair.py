"""With ``batch_invariant``, engine ``torch`` and trainer ``torch`` have bitwise equal log-probs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astraflow_core.errors import UserError
from astraflow_core.types import Batch, GenerateRequest, GenerateResult, Sampling
from astraflow_testing.conformance.subject import context, installed
from astraflow_testing.stamping import stamped

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
batch_invariant = pytest.importorskip("astraflow_torch_weights.batch_invariant")

Tokens = npt.NDArray[np.int32]
EXACT = {"batch_invariant": True, "device": "cpu"}


@dataclass(frozen=True)
class Case:
    """A model, and what is asked of it."""

    kind: str
    layers: int
    groups: int
    shared: int
    head_dim: int
    hidden: int
    ffn: int
    tie: bool
    prompts: tuple[int, ...]
    sampled: tuple[int, ...]
    max_batch: int
    temperature: float
    layout: str
    micro_batch_tokens: int
    threads: int
    seed: int

    def write(self, folder: Path) -> Path:
        """The model, with distributions far from uniform."""
        config = {"qwen3": transformers.Qwen3Config, "llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[self.kind](
            vocab_size=37, hidden_size=self.hidden, intermediate_size=self.ffn,
            num_hidden_layers=self.layers, num_attention_heads=self.groups * self.shared,
            num_key_value_heads=self.groups, head_dim=self.head_dim, max_position_embeddings=256,
            tie_word_embeddings=self.tie, eos_token_id=1, pad_token_id=0, bos_token_id=None,
            initializer_range=0.2,
        )  # fmt: skip
        torch.manual_seed(self.seed)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        return folder

    def requests(self) -> list[GenerateRequest]:
        random = np.random.default_rng(self.seed)
        return [
            GenerateRequest(
                str(number),
                random.integers(2, 37, prompt).astype(np.int32),
                Sampling(sampled, temperature=self.temperature, ignore_eos=True),
            )
            for number, (prompt, sampled) in enumerate(zip(self.prompts, self.sampled, strict=True))
        ]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    number = draw(st.integers(1, 7))

    def lengths(most: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(1, most), min_size=number, max_size=number)))

    return Case(
        kind=draw(st.sampled_from(["qwen3", "qwen2", "llama"])),
        layers=draw(st.integers(1, 2)),
        groups=draw(st.integers(1, 3)),
        shared=draw(st.integers(1, 3)),
        head_dim=draw(st.sampled_from([4, 8, 10, 32])),
        hidden=draw(st.sampled_from([36, 72])),
        ffn=draw(st.sampled_from([7, 48, 131])),
        tie=draw(st.booleans()),
        prompts=lengths(90),
        sampled=lengths(24),
        max_batch=draw(st.integers(1, 7)),
        temperature=draw(st.sampled_from([1.0, 0.7, 1.3])),
        layout=draw(st.sampled_from(["auto", "packed"])),
        micro_batch_tokens=draw(st.sampled_from([16, 200, 2048])),
        threads=draw(st.integers(1, 2)),
        seed=draw(st.integers(0, 2**16)),
    )


def component(kind: str, keys: dict[str, Any], place: Path) -> Any:
    (build,) = installed(kind, "torch", keys).variants.values()
    return build(context(kind, place))


async def sampled_by(engine: Any, model: Path, requests: list[GenerateRequest]) -> Any:
    await engine.start(model)
    try:
        results = await asyncio.gather(*(engine.generate(request) for request in requests))
        rows = [
            np.concatenate([r.prompt, x.tokens]) for r, x in zip(requests, results, strict=True)
        ]
        return results, [await engine.score(row) for row in rows]
    finally:
        await engine.close()


def rows_of(
    requests: list[GenerateRequest], results: list[GenerateResult], temperature: float
) -> Batch:
    """All of them as one batch; the log-probs are those of the engine."""
    sizes = [(len(r.prompt), len(x.tokens)) for r, x in zip(requests, results, strict=True)]
    mask = np.concatenate([np.arange(p + s) >= p for p, s in sizes])
    logprobs = np.zeros(len(mask), np.float32)
    logprobs[mask] = np.concatenate([x.logprobs for x in results])
    count = len(sizes)
    return stamped(
        Batch(
            id="b",
            policy="solver",
            version=0,
            lengths=np.array([p + s for p, s in sizes], np.int32),
            tokens=np.concatenate(
                [
                    np.concatenate([r.prompt, x.tokens])
                    for r, x in zip(requests, results, strict=True)
                ]
            ).astype(np.int32),
            loss_mask=mask,
            logprobs=logprobs,
            versions=np.where(mask, 0, -1).astype(np.int32),
            rewards=np.zeros(count, np.float32),
            group=np.zeros(count, np.int64),
            trajectory=np.arange(count),
            group_size=np.full(count, count, np.int32),
            group_mean=np.zeros(count, np.float32),
            group_std=np.zeros(count, np.float32),
            temperature=temperature,
        )
    )


def trainer_of(case: Case, model: Path, place: Path, **keys: Any) -> Any:
    trainer = component(
        "trainer",
        {
            **EXACT,
            "publish_dtype": "float32",
            "layout": case.layout,
            "micro_batch_tokens": case.micro_batch_tokens,
            "threads": case.threads,
            **keys,
        },
        place,
    )
    trainer.setup(model, 10, frozenset())
    return trainer


@pytest.mark.slow
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cases())
def test_sampling_scoring_and_training_agree_bitwise(tmp_path_factory: Any, case: Case) -> None:
    place = tmp_path_factory.mktemp("pair")
    model = case.write(place / "model")
    keys = {**EXACT, "max_batch": case.max_batch, "cache_gb": 0.01}
    requests = case.requests()
    results, scores = asyncio.run(sampled_by(component("engine", keys, place), model, requests))
    batch = rows_of(requests, results, case.temperature)
    trainer = trainer_of(case, model, place)
    theirs = trainer.logprobs(batch, "current")
    assert (theirs[batch.loss_mask] == batch.logprobs[batch.loss_mask]).all()
    raw = trainer.logprobs(replace(batch, temperature=1.0), "current")
    assert (raw == np.concatenate(scores)).all()
    trainer.close()


ONE = Case(
    kind="qwen3", layers=2, groups=2, shared=2, head_dim=8, hidden=36, ffn=48, tie=True,
    prompts=(3, 80, 17), sampled=(24, 9, 16), max_batch=3, temperature=0.7,
    layout="packed", micro_batch_tokens=2048, threads=1, seed=5,
)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pair")


@pytest.fixture(scope="module")
def model(place: Path) -> Path:
    return ONE.write(place / "model")


@pytest.fixture(scope="module")
def rows(place: Path, model: Path) -> Batch:
    """What an exact engine samples of :data:`ONE`."""
    keys = {**EXACT, "max_batch": 3, "cache_gb": 0.01}
    results, _ = asyncio.run(sampled_by(component("engine", keys, place), model, ONE.requests()))
    return rows_of(ONE.requests(), results, ONE.temperature)


def gap_of(trainer: Any, rows: Batch) -> float:
    apart = np.abs(trainer.logprobs(rows, "current") - rows.logprobs)
    return float(apart[rows.loss_mask].max())


def test_other_orders_of_sums_show(
    place: Path, model: Path, rows: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer's alone; each is so small a change that no tolerance would find it."""
    exact = trainer_of(ONE, model, place)
    assert gap_of(exact, rows) == 0
    with monkeypatch.context() as patch:
        patch.setattr(batch_invariant, "SCORES", 1)  # as many queries at once as memory allows
        assert gap_of(exact, rows) == 0
    for name, value in (("KEYS", 16), ("_products", backwards)):
        with monkeypatch.context() as patch:
            patch.setattr(batch_invariant, name, value)
            assert 0 < gap_of(exact, rows) < 1e-5, name
    assert 0 < gap_of(trainer_of(ONE, model, place, batch_invariant=False), rows) < 1e-5


def backwards(left: Any, right: Any) -> Any:
    """Products that are added up the other way round."""
    return torch.bmm(left.flip(-1), right.flip(1))


def test_what_was_drafted_is_exact_too(
    place: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several tokens of a row in one pass, against the trainer's log-probs and the tokens without drafts."""
    lengths = pytest.importorskip("astraflow_plugin_torch_engine.speculation.lengths")
    monkeypatch.setattr(lengths.DraftLengths, "choose", lambda self, kind, asked: asked)
    sampling = Sampling(40, temperature=0, ignore_eos=True)
    prompts = [np.arange(2, 5 + 20 * (n % 2), dtype=np.int32) for n in range(6)]
    requests = [GenerateRequest(str(n), prompt, sampling) for n, prompt in enumerate(prompts)]

    async def sampled(speculation: str) -> tuple[list[GenerateResult], dict[str, float]]:
        keys = {**EXACT, "max_batch": 2, "cache_gb": 0.01, "speculation": speculation}
        engine = component("engine", keys, place)
        await engine.start(model)
        try:
            found = await asyncio.gather(*(engine.generate(request) for request in requests))
            return list(found), await engine.health()
        finally:
            await engine.close()

    (found, health), (plain, _) = (asyncio.run(sampled(each)) for each in ("history", "none"))
    assert health["accepted_tokens"] > 0
    for ours, theirs in zip(found, plain, strict=True):
        assert (ours.tokens == theirs.tokens).all() and (ours.logprobs == theirs.logprobs).all()
    assert gap_of(trainer_of(ONE, model, place), rows_of(requests, found, 1.0)) == 0


def test_gradients_are_those_of_torch(model: Path) -> None:
    ids = torch.arange(2, 32).reshape(2, 15)

    def gradients(exact: bool) -> list[Any]:
        loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        if exact:
            batch_invariant.make_batch_invariant(loaded, "the test")
        loaded(input_ids=ids, labels=ids).loss.backward()
        return [parameter.grad for parameter in loaded.parameters()]

    for ours, theirs in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_values_are_those_of_torch(model: Path) -> None:
    """Not only equal on both sides: also right."""
    ids = torch.arange(2, 32).reshape(2, 15)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        expected = loaded(input_ids=ids).logits
        batch_invariant.make_batch_invariant(loaded, "the test")
        torch.testing.assert_close(loaded(input_ids=ids).logits, expected, rtol=1e-5, atol=1e-5)


def test_the_log_probs_that_are_trained_are_those_that_were_sampled(
    place: Path, model: Path, rows: Batch
) -> None:
    (build,) = installed("algorithm", "grpo").variants.values()
    algorithm = build(context("trainer", place))
    share = (rows.loss_mask / rows.loss_mask.sum()).astype(np.float32)
    given = replace(
        rows, advantages=np.ones(len(rows.tokens), np.float32), weights={"policy": share}
    )
    exact, fast = (trainer_of(ONE, model, place, batch_invariant=on) for on in (True, False))
    norms = [trainer.step(given, algorithm, 0)["grad_norm"] for trainer in (exact, fast)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4) and norms[0] > 0
    assert (exact.step_logprobs() == rows.logprobs).all()
    assert (fast.step_logprobs() != rows.logprobs).any()


def test_what_a_gpu_is_asked_for_gives_the_same_values() -> None:
    """The shapes that CUDA gets, computed here."""
    random = torch.Generator().manual_seed(0)
    left, right = (torch.randn(70, 16, 16, generator=random) for _ in range(2))
    torch.testing.assert_close(batch_invariant._in_equal_calls(left, right), left @ right)
    weight = right[0].T
    torch.testing.assert_close(batch_invariant._one_by_one(left, weight), left @ right[0])
    norm = torch.nn.RMSNorm(16)
    shapes: list[int] = []

    def noted(x: Any) -> Any:
        shapes.append(len(x))
        return norm(x)

    torch.testing.assert_close(batch_invariant._in_fixed_rows(noted, left), norm(left))
    assert set(shapes) == {batch_invariant.NORM_ROWS}


class TestModelsThatAreRefused:
    def test_other_layers(self) -> None:
        config = transformers.GPT2Config(vocab_size=8, n_embd=8, n_layer=1, n_head=1, n_positions=8)
        other = transformers.AutoModelForCausalLM.from_config(config)
        with pytest.raises(UserError, match=r"^me: batch_invariant does not support .*LayerNorm"):
            batch_invariant.make_batch_invariant(other, "me")

    def test_experts(self) -> None:
        config = transformers.Qwen3MoeConfig(
            vocab_size=8, hidden_size=8, intermediate_size=8, moe_intermediate_size=8, num_experts=2,
            num_experts_per_tok=1, num_hidden_layers=1, num_attention_heads=1,
            num_key_value_heads=1, head_dim=8,
        )  # fmt: skip
        other = transformers.AutoModelForCausalLM.from_config(config)
        with pytest.raises(UserError, match=r"does not support .*Experts"):
            batch_invariant.make_batch_invariant(other, "me")

    def test_other_types(self, model: Path) -> None:
        half = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        with pytest.raises(UserError, match=r"computes in float32, the model has torch.bfloat16"):
            batch_invariant.make_batch_invariant(half, "me")

    def test_a_window(self) -> None:
        config = transformers.MistralConfig(
            vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
            num_attention_heads=1, num_key_value_heads=1, sliding_window=4,
        )  # fmt: skip
        other = transformers.AutoModelForCausalLM.from_config(config)
        with pytest.raises(UserError, match="needs full attention"):
            batch_invariant.make_batch_invariant(other, "me")

    def test_a_machine_that_computes_two_results(
        self, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        monkeypatch.setattr(batch_invariant, "_shared_product", lambda x, w: x @ w.T)
        monkeypatch.setattr(batch_invariant, "_in_rows", lambda x: x[None])
        monkeypatch.setattr(batch_invariant, "attention", eager)
        with pytest.raises(UserError, match="does not hold on this machine: the logits of a token"):
            batch_invariant.make_batch_invariant(loaded, "me")


def eager(module: Any, query: Any, key: Any, value: Any, mask: Any, **_: Any) -> Any:
    from torch.nn.functional import scaled_dot_product_attention

    found = scaled_dot_product_attention(
        query, key, value, is_causal=query.shape[2] > 1, enable_gqa=True
    )
    return found.transpose(1, 2).contiguous(), None


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
@pytest.mark.parametrize("seed", range(4))
def test_sampling_scoring_and_training_agree_bitwise_on_a_gpu(tmp_path: Path, seed: int) -> None:
    case = replace(ONE, seed=seed, head_dim=64, hidden=256, ffn=384, prompts=(3, 130, 17, 64, 9),
                   sampled=(24, 9, 16, 40, 1), max_batch=2 + seed)  # fmt: skip
    model = case.write(tmp_path / "model")
    keys = {**EXACT, "device": "cuda", "max_batch": case.max_batch, "cache_gb": 0.1}
    engine = component("engine", keys, tmp_path)
    results, scores = asyncio.run(sampled_by(engine, model, case.requests()))
    batch = rows_of(case.requests(), results, case.temperature)
    trainer = trainer_of(case, model, tmp_path, device="cuda")
    assert gap_of(trainer, batch) == 0
    raw = trainer.logprobs(replace(batch, temperature=1.0), "current")
    assert (raw == np.concatenate(scores)).all()
    trainer.close()
