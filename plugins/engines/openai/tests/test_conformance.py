"""The engine suite over HTTP, against the stand-in of ``conftest``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from astraflow_core.errors import WeightsError
from astraflow_core.types import Sampling, WeightSource
from astraflow_testing.conformance.engine import EngineConformance, Subject, installed
from astraflow_testing.conformance.manifest import ManifestConformance


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_plugin_openai.manifest"


class TestOpenAIOnAStandIn(EngineConformance):
    own_tests: ClassVar = {"frozen": "test_it_takes_no_weights_and_stays_at_version_0"}

    @pytest.fixture
    def component(self, serving: Callable[..., Any], model: Path) -> Subject:
        stand_in = serving(model)
        stand_in.delay_s = 0.0005  # else requests end before a test can interfere
        return installed("engine", "openai", {"url": stand_in.url})

    def test_it_takes_no_weights_and_stays_at_version_0(
        self, run: Any, other: Path, examiner: Any
    ) -> None:
        async def scenario(served: Any) -> None:
            with pytest.raises(WeightsError, match="frozen"):
                await served.engine.load_weights(WeightSource("judge", 1, other, "", 0, 0.0))
            request, result = await served.generate(Sampling(8, ignore_eos=True))
            examiner(served).examine(request, result)
            assert set(result.versions.tolist()) == {0}

        run(scenario)
