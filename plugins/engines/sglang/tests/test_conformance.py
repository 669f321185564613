"""The engine suite against the stand-in for SGLang (see ``sglang_stand_in``), by each way of an update and of a
pause; `test_gpu.py` runs it against the real server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sglang_recomputed import recomputed

from astraflow_testing.conformance._models.images.engine_image_tests import EngineImageTests
from astraflow_testing.conformance.engine import (
    EngineConformance,
    Reference,
    Subject,
    installed,
)
from astraflow_testing.conformance.manifest import ManifestConformance

pytestmark = pytest.mark.timeout(120)
RETRACT = ("--skip-tokenizer-init",)


def engine(**keys: Any) -> Subject:
    """For the model of the suite, which reads no images."""
    found = installed("engine", "sglang", keys)
    return replace(found, capabilities=found.capabilities - {"images"})


class OnStandIn:
    deadline_s = 60.0  # it computes in numpy, and longest for a prompt of 2,000 tokens


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_plugin_sglang.manifest"


@pytest.mark.slow
class TestSGLangOnAProtocolStandIn(OnStandIn, EngineConformance):
    @pytest.fixture
    def component(self, serving: Callable[..., Any], model: Path) -> Subject:
        return engine(url=serving(model).url)


class TestSGLangRetractingOnAProtocolStandIn(OnStandIn, EngineConformance):
    """With the overlap scheduler and the prefix cache, which are SGLang's defaults: the one that every change runs."""

    @pytest.fixture
    def component(self, serving: Callable[..., Any], model: Path) -> Subject:
        return engine(url=serving(model, RETRACT).url, keep="retract")

    @pytest.fixture
    def reference(self, model: Path) -> Reference:
        return recomputed(model)


@pytest.mark.slow
class TestSGLangByTensorsOnAProtocolStandIn(OnStandIn, EngineConformance):
    @pytest.fixture
    def component(
        self, serving: Callable[..., Any], model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Subject:
        torch = pytest.importorskip("torch")
        from astraflow_plugin_sglang import sharing

        monkeypatch.setattr(sharing, "gpu", lambda: torch.device("cpu"))
        return engine(url=serving(model).url, update="tensor")


@pytest.mark.slow
class TestSGLangByBroadcastOnAProtocolStandIn(OnStandIn, EngineConformance):
    @pytest.fixture
    def component(self, serving: Callable[..., Any], model: Path) -> Subject:
        pytest.importorskip("torch")
        return engine(url=serving(model).url, update="distributed")


@pytest.mark.slow
class TestSGLangImagesOnAProtocolStandIn(OnStandIn, EngineImageTests):
    """What the suite demands of images, of a server whose model reads them."""

    tolerance = EngineConformance.tolerance

    @pytest.fixture
    def component(self, serving: Callable[..., Any], picture_model: Path) -> Subject:
        return installed("engine", "sglang", {"url": serving(picture_model).url})
