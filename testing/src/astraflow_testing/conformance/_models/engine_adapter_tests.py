"""Tests of an engine that declares ``adapters``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from astraflow_core.errors import WeightsError, WrongVersion
from astraflow_core.types import Sampling, WeightSource
from astraflow_testing.conformance._checks import capability
from astraflow_testing.conformance._models.engine_control import Examine, Run
from astraflow_testing.conformance._models.engine_rig import DEMANDS, PROMPT, Examiner, Served
from astraflow_testing.conformance._models.qwen3 import log_softmax
from astraflow_testing.conformance.subject import Subject
from astraflow_wire.model_files.model_digest import digest_of_model

SAMPLING = Sampling(20, ignore_eos=True)
KINDS = {11: ("_proj", 4), 12: ("mlp", 2), 13: ("_proj", 3)}
"""Version of an adapter → which matrices it changes, and its rank."""


class EngineAdapterTests:
    """Part of :class:`astraflow_testing.conformance.engine.EngineConformance`."""

    tolerance: float

    @capability("adapters")
    def test_adapters_live_side_by_side(
        self, component: Subject, run: Run, examiner: Examine, model: Path, tmp_path: Path
    ) -> None:
        """Requests with different adapters, and without one, are sampled at once, each as if its adapter were merged."""
        made = {version: write_adapter(model, tmp_path, version) for version in KINDS}

        async def scenario(served: Served) -> None:
            engine: Any = served.engine
            check = _with_adapters(examiner(served), made)
            await engine.load_adapter("a", made[11][0])
            await engine.load_adapter("b", made[12][0])
            sent = [
                served.launch(
                    SAMPLING, (*PROMPT, 2 + number // 6), adapter=("a", "b", "")[number % 3]
                )
                for number in range(12)
            ]
            kept = served.launch(replace(SAMPLING, max_tokens=200), adapter="a")
            for number, one in enumerate(sent):
                result = await one.task
                _of_version(result.versions, (11, 12, 0)[number % 3])
                check.examine(one.request, result)
            await engine.load_adapter("a", made[13][0])
            later = served.launch(SAMPLING, adapter="a", pinned_version=13)
            _of_version((await later.task).versions, 13)
            check.examine(later.request, await later.task)
            await engine.load_adapter("b", None)
            with pytest.raises(WrongVersion):
                await served.launch(SAMPLING, adapter="b").task
            with pytest.raises(WrongVersion):
                await served.launch(SAMPLING, adapter="a", pinned_version=11).task
            _of_version((await kept.task).versions, 11)
            check.examine(kept.request, await kept.task)

        run(scenario)

    @capability("adapters")
    def test_an_adapter_scores_and_is_refused_if_it_does_not_fit(
        self,
        component: Subject,
        run: Run,
        examiner: Examine,
        model: Path,
        other: Path,
        tmp_path: Path,
    ) -> None:
        made = {version: write_adapter(model, tmp_path, version) for version in (11, 12)}
        tokens = np.array([*PROMPT, 8, 6, 4], np.int32)

        async def scenario(served: Served) -> None:
            engine: Any = served.engine
            check = _with_adapters(examiner(served), made)
            for version in (11, 12):
                await engine.load_adapter("a", made[version][0])
                scores = await engine.score_adapter("a", tokens)
                files = [made[version][1]] * (len(tokens) - 1)
                expected = log_softmax(check.reference(tokens[:1], tokens[1:], files))
                wanted = expected[np.arange(len(tokens) - 1), tokens[1:]]
                DEMANDS.that(
                    bool(np.abs(scores[1:] - wanted).max() < self.tolerance),
                    f"score_adapter() is off by {np.abs(scores[1:] - wanted).max():.2g}",
                    "the log-probs of the tokens with that adapter",
                )
            for wrong in (
                replace(made[11][0], base="another"),
                WeightSource("p", 14, other, "", 0, 0.0, "adapter", made[11][0].base),
            ):
                with pytest.raises(WeightsError):
                    await engine.load_adapter("a", wrong)
            _of_version((await served.launch(SAMPLING, adapter="a").task).versions, 12)

        run(scenario)


def write_adapter(model: Path, folder: Path, version: int) -> tuple[WeightSource, Path]:
    """An adapter for the model's folder, and a file of the weights that it makes."""
    part, rank = KINDS[version]
    rng = np.random.default_rng(version)
    base = model / "model.safetensors"
    factors: dict[str, np.ndarray[Any, Any]] = {}
    merged = load_file(base)
    for name, weight in merged.items():
        if part in name and name.endswith("_proj.weight"):
            a = rng.normal(0, 1, (rank, weight.shape[1])).astype(np.float32)
            b = rng.normal(0, 0.15, (weight.shape[0], rank)).astype(np.float32)
            module = f"base_model.model.{name.removesuffix('.weight')}"
            factors |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
            merged[name] = weight + b @ a
    adapter, whole = (
        folder / f"adapter-{version}.safetensors",
        folder / f"merged-{version}.safetensors",
    )
    save_file(factors, adapter)
    save_file(merged, whole)
    digest = digest_of_model([base])
    return WeightSource("p", version, adapter, "", 0, 0.0, "adapter", digest), whole


def _with_adapters(check: Examiner, made: dict[int, tuple[WeightSource, Path]]) -> Examiner:
    merged = {version: whole for version, (_, whole) in made.items()}
    return replace(check, files={**check.files, **merged})


def _of_version(found: np.ndarray[Any, Any], version: int) -> None:
    DEMANDS.that(
        set(found.tolist()) == {version},
        f"tokens carry the versions {sorted(set(found.tolist()))} where the adapter named has {version}",
        "each token carries the version of the adapter that its request names, for as long as it runs",
    )
