"""Engines that each do one thing wrong; the suite for engines has to fail them all.

All but one are the table engine, which needs no framework, with one realistic mistake; since a table
cannot score, that one is the engine ``torch``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from astraflow_core.errors import WeightsError
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.types import (
    ComponentContext,
    GenerateRequest,
    GenerateResult,
    Images,
    ImageSpan,
    WeightSource,
)
from astraflow_plugin_torch_engine import manifest
from astraflow_plugin_torch_engine.config import TorchEngineConfig
from astraflow_plugin_torch_engine.engine import TorchEngine
from astraflow_testing.conformance.engine import (
    EngineConformance,
    Reference,
    Subject,
)
from astraflow_testing.table import POSITIONS, TableEngine, TableEngineConfig
from astraflow_tiny_model.folder import write_tiny_model


def write_table(file: Path, seed: int) -> Path:
    logits = np.random.default_rng(seed).normal(0, 1.5, (POSITIONS, 27))
    save_file({"logits": logits.astype(np.float32)}, file)
    return file


class Examination(EngineConformance):
    """The suite on the table engine, or on what ``engine`` names instead."""

    __test__ = False
    deadline_s = 4.0
    wrong = ""
    engine: type[TableEngine] = TableEngine
    capabilities: frozenset[str] = TableEngine.capabilities

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__test__ = True

    @pytest.fixture
    def component(self) -> Subject:
        def build(context: ComponentContext) -> TableEngine:
            return self.engine(TableEngineConfig(token_s=0.001), context)

        return Subject({self.engine.__name__: build}, self.capabilities)

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        folder = write_tiny_model(tmp_path / "table", hidden=8, layers=1, heads=1, kv_heads=1)
        write_table(folder / "model.safetensors", 0)
        return folder

    @pytest.fixture
    def other(self, tmp_path: Path) -> Path:
        return write_table(tmp_path / "other.safetensors", 1)

    @pytest.fixture
    def reference(self) -> Reference:
        def logits(prompt: np.ndarray, tokens: np.ndarray, files: Sequence[Path]) -> np.ndarray:
            tables = {file: load_file(file)["logits"].astype(np.float64) for file in set(files)}
            return np.array([tables[file][min(i, POSITIONS - 1)] for i, file in enumerate(files)])

        return logits


class TestHealthy(Examination):
    pass


class ShiftedLogprobs(TableEngine):
    async def generate(self, request: GenerateRequest) -> GenerateResult:
        result = await super().generate(request)
        return replace(result, logprobs=np.roll(result.logprobs, 1))


class TestShiftedLogprobs(Examination):
    wrong = "log-probs are off by one against the tokens"
    engine = ShiftedLogprobs


class LateVersions(TableEngine):
    async def generate(self, request: GenerateRequest) -> GenerateResult:
        result = await super().generate(request)
        return replace(result, versions=np.full_like(result.versions, self._version))


class TestLateVersions(Examination):
    wrong = "the version is stamped when the result is returned, not when a token is sampled"
    engine = LateVersions


class RawLogprobs(TableEngine):
    async def generate(self, request: GenerateRequest) -> GenerateResult:
        result = await super().generate(request)
        rows = self._logits[np.minimum(np.arange(len(result.tokens)), POSITIONS - 1)]
        raw = rows - np.log(np.exp(rows).sum(-1, keepdims=True))
        picked = raw[np.arange(len(rows)), result.tokens].astype(np.float32)
        return replace(result, logprobs=picked)


class TestRawLogprobs(Examination):
    wrong = "log-probs leave the temperature out although the semantics include it"
    engine = RawLogprobs


class NoTruncation(TableEngine):
    async def generate(self, request: GenerateRequest) -> GenerateResult:
        sampling = replace(request.sampling, top_p=1.0)
        return await super().generate(replace(request, sampling=sampling))


class TestNoTruncation(Examination):
    wrong = "top_p is accepted and ignored"
    engine = NoTruncation


class WarmedSamples(TableEngine):
    async def generate(self, request: GenerateRequest) -> GenerateResult:
        sampling = replace(request.sampling, temperature=1.0)
        if request.sampling.temperature == 0:
            sampling = request.sampling
        result = await super().generate(replace(request, sampling=sampling))
        rows = self._logits[np.minimum(np.arange(len(result.tokens)), POSITIONS - 1)]
        scaled = rows / (request.sampling.temperature or 1.0)
        logprobs = scaled - np.log(np.exp(scaled).sum(-1, keepdims=True))
        picked = logprobs[np.arange(len(rows)), result.tokens].astype(np.float32)
        return replace(result, logprobs=picked)


class TestWarmedSamples(Examination):
    wrong = "samples at temperature 1 whatever was asked, and reports log-probs at the temperature asked"
    engine = WarmedSamples


class DroppedStopToken(TableEngine):
    async def generate(self, request: GenerateRequest) -> GenerateResult:
        result = await super().generate(request)
        if result.finish_reason != "stop":
            return result
        return replace(
            result,
            tokens=result.tokens[:-1],
            logprobs=result.logprobs[:-1],
            versions=result.versions[:-1],
        )


class TestDroppedStopToken(Examination):
    wrong = "the stop token is cut off, as text servers do, so that the policy never learns to stop"
    engine = DroppedStopToken


class KeepThatGoesOn(TableEngine):
    async def pause(self, mode: PauseMode) -> None:
        if mode != "keep":
            await super().pause(mode)
        self._paused = True


class TestKeepThatGoesOn(Examination):
    wrong = "pause('keep') holds back new requests but lets the running ones sample on"
    engine = KeepThatGoesOn


class DeafWhileFrozen(TableEngine):
    """As a server whose requests end only with their next token."""

    kept = False

    async def pause(self, mode: PauseMode) -> None:
        self.kept = mode == "keep"
        await super().pause(mode)

    async def resume(self) -> None:
        self.kept = False
        await super().resume()

    async def abort(self, ids: list[str]) -> None:
        if not self.kept:
            await super().abort(ids)


class TestDeafWhileFrozen(Examination):
    wrong = "abort of a frozen request does nothing"
    caught_by = "test_a_frozen_request_can_be_aborted"
    engine = DeafWhileFrozen


class FrozenForEver(TableEngine):
    async def pause(self, mode: PauseMode) -> None:
        if not (mode == "abort" and self._paused):
            await super().pause(mode)


class TestFrozenForEver(Examination):
    wrong = "pause('abort') leaves what pause('keep') had frozen"
    caught_by = "test_frozen_requests_end_by_a_pause_that_aborts"
    engine = FrozenForEver


class HastyVersion(TableEngine):
    async def load_weights(self, source: WeightSource) -> None:
        self._version = source.version
        await super().load_weights(source)


class TestHastyVersion(Examination):
    wrong = "the version number changes before the weights were checked"
    engine = HastyVersion


class TornLoad(TableEngine):
    async def load_weights(self, source: WeightSource) -> None:
        before = self._logits
        try:
            await super().load_weights(source)
        except WeightsError:
            self._logits = before[::-1].copy()
            raise


class TestTornLoad(Examination):
    wrong = "a refused load leaves a part of the new weights behind"
    engine = TornLoad


class UnpinnedRequests(TableEngine):
    async def generate(self, request: GenerateRequest) -> GenerateResult:
        return await super().generate(replace(request, pinned_version=None))


class TestUnpinnedRequests(Examination):
    wrong = "pinned_version is ignored"
    engine = UnpinnedRequests


class LeakingCancel(TableEngine):
    async def generate(self, request: GenerateRequest) -> GenerateResult:
        return await asyncio.shield(super().generate(request))


class TestLeakingCancel(Examination):
    wrong = "a cancelled request keeps sampling"
    engine = LeakingCancel


class ShortContext(TableEngine):
    async def generate(self, request: GenerateRequest) -> GenerateResult:
        room = self.context_length - len(request.prompt)
        sampling = request.sampling
        if sampling.max_tokens > room:
            sampling = replace(sampling, max_tokens=room)
        return await super().generate(replace(request, sampling=sampling))


class TestShortContext(Examination):
    wrong = "a request over the context is silently cut instead of refused"
    engine = ShortContext


class TorchExamination(EngineConformance):
    """The suite on what ``torch_engine`` names, a variant of the engine ``torch``."""

    __test__ = False
    torch_engine: type[TorchEngine] = TorchEngine

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__test__ = True

    @pytest.fixture
    def component(self) -> Subject:
        (declared,) = manifest.astraflow_engines()

        def build(context: ComponentContext) -> TorchEngine:
            return self.torch_engine(TorchEngineConfig(device="cpu"), context)

        return Subject({self.torch_engine.__name__: build}, declared.capabilities)


class ShiftedScore(TorchEngine):
    async def score(self, tokens: np.ndarray) -> np.ndarray:
        return np.append((await super().score(tokens))[1:], np.float32(0))


class TestShiftedScore(TorchExamination):
    wrong = "score() gives each token the log-prob of the next one"
    torch_engine = ShiftedScore


class ShiftedExperts(TorchEngine):
    async def generate(self, request: GenerateRequest) -> GenerateResult:
        result = await super().generate(request)
        routed = result.routed_experts
        return result if routed is None else replace(result, routed_experts=np.roll(routed, 1, 0))


class TestShiftedExperts(TorchExamination):
    wrong = "the experts of a token are those of the token before it"
    caught_by = "test_routed_experts_are_those_of_every_token_read"
    torch_engine = ShiftedExperts


class NewestAdapter(TorchEngine):
    async def load_adapter(self, name: str, source: WeightSource | None) -> None:
        await super().load_adapter(name, source)
        self.newest = name

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        named = replace(request, adapter=self.newest) if request.adapter else request
        return await super().generate(named)


class TestNewestAdapter(TorchExamination):
    wrong = "every request is sampled with the adapter that was loaded last"
    caught_by = "test_adapters_live_side_by_side"
    torch_engine = NewestAdapter


class OwnVersion(TorchEngine):
    async def generate(self, request: GenerateRequest) -> GenerateResult:
        result = await super().generate(request)
        return replace(result, versions=np.zeros_like(result.versions))


class TestOwnVersion(TorchExamination):
    wrong = "tokens sampled with an adapter carry the version of its base"
    caught_by = "test_adapters_live_side_by_side"
    torch_engine = OwnVersion


class BlindEngine(TorchEngine):
    async def generate(self, request: GenerateRequest) -> GenerateResult:
        return await super().generate(replace(request, images=()))


class TestBlindEngine(TorchExamination):
    wrong = "images are ignored: placeholders are read as tokens"
    caught_by = "test_images_are_read_at_their_placeholders"
    torch_engine = BlindEngine


class SameTokensSameImages(TorchEngine):
    """As a prefix cache whose keys are tokens alone."""

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        first: dict[bytes, Images] = self.__dict__.setdefault("first", {})
        images = first.setdefault(request.prompt.tobytes(), request.images)
        return await super().generate(replace(request, images=images))


class TestSameTokensSameImages(TorchExamination):
    wrong = "a request sees the images of an earlier one with the same tokens"
    caught_by = "test_images_are_read_at_their_placeholders"
    torch_engine = SameTokensSameImages


class AnyPlaceholders(TorchEngine):
    async def generate(self, request: GenerateRequest) -> GenerateResult:
        try:
            return await super().generate(request)
        except ValueError:
            return await super().generate(replace(request, images=()))


class TestAnyPlaceholders(TorchExamination):
    wrong = "an image with a placeholder too few is taken, and left out"
    caught_by = "test_images_that_do_not_fit_are_refused"
    torch_engine = AnyPlaceholders


class EarlierFeatures(TorchEngine):
    async def start(self, model: Path) -> None:
        await super().start(model)
        encoder, kept = self._loop.model.images, dict[str, torch.Tensor]()
        if encoder is None:
            return
        made = encoder.features

        def features(images: Sequence[ImageSpan]) -> dict[str, torch.Tensor]:
            if missing := [image for image in images if image.digest not in kept]:
                kept.update(made(missing))
            return {image.digest: kept[image.digest] for image in images}

        encoder.features = features  # type: ignore[assignment, method-assign]


class TestEarlierFeatures(TorchExamination):
    wrong = "what the vision tower made of an image is kept when its weights change"
    caught_by = "test_new_weights_read_images_anew"
    torch_engine = EarlierFeatures


class TestUnshownClaim(Examination):
    wrong = "claims adapters, which no test shows"
    caught_by = "test_every_declared_capability_is_tested"
    capabilities = TableEngine.capabilities | {"lora"}


class TestHalfShownClaim(Examination):
    wrong = "claims swaps in flight, whose test is skipped for want of pause.keep"
    caught_by = "test_every_declared_capability_is_tested"
    capabilities = frozenset({"pause.wait", "weights.path", "weights.inflight"})


class TestSkippedClaim(Examination):
    wrong = "claims adapters, and skips its own test of them"
    caught_by = "test_adapters"
    capabilities = TableEngine.capabilities | {"lora"}
    own_tests: ClassVar[dict[str, str]] = {"lora": "test_adapters"}

    def test_adapters(self) -> None:
        pytest.skip("no adapter at hand")
