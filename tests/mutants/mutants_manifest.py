"""Manifests with one mistake each; run by test_mutants.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from astraflow_testing.conformance.manifest import ManifestConformance

MANIFEST = """
from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_data_policies() -> list[Component]:
    return [
        Component(
            name="coin",
            target="PACKAGE.policy:Coin",
            config="PACKAGE.config:CoinConfig",
            summary="admits every other prompt",
            capabilities=frozenset({"admit"}),
        )
    ]
"""
CONFIG = """
from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Schedule(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    until: int = Field(10, description="The last step.")


class CoinConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    share: float = Field(0.5, description="Share of the prompts that is admitted.")
    schedule: Schedule | None = Field(None, description="When to stop.")
"""
POLICY = """
from __future__ import annotations


class Coin:
    def __init__(self, config, context):
        self._config = config

    def admit(self, prompt):
        return True
"""


class OfText(ManifestConformance):
    """A plugin written into a folder, with ``replace`` (file, old, new) applied."""

    replace: ClassVar[tuple[str, str, str] | None] = None
    entry_point: ClassVar[bool] = True

    @pytest.fixture
    def manifest(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
        package = f"written_{type(self).__name__.lower()}"
        folder = tmp_path / package
        folder.mkdir()
        texts = {"manifest.py": MANIFEST, "config.py": CONFIG, "policy.py": POLICY}
        if self.replace is not None:
            file, old, new = self.replace
            assert old in texts[file]
            texts[file] = texts[file].replace(old, new)
        (folder / "__init__.py").write_text("")
        for name, text in texts.items():
            (folder / name).write_text(text.replace("PACKAGE", package))
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        if self.entry_point:
            (info / "entry_points.txt").write_text(f"[astraflow]\n{package} = {package}.manifest\n")
        monkeypatch.syspath_prepend(tmp_path)
        yield f"{package}.manifest"
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]


class TestHealthy(OfText):
    pass


class TestImportsItsTarget(OfText):
    wrong = "imports the config model at the top, and pydantic with it"
    replace = (
        "manifest.py",
        "ASTRAFLOW_API",
        "from PACKAGE.config import CoinConfig\n\nassert CoinConfig\nASTRAFLOW_API",
    )


class TestImportsWhenAsked(OfText):
    wrong = "imports numpy inside the registration hook"
    replace = (
        "manifest.py",
        "    return [",
        "    import numpy as np\n\n    assert np\n    return [",
    )


class TestNoApi(OfText):
    wrong = "does not say for which API it is written"
    replace = ("manifest.py", "ASTRAFLOW_API = (1, 0)", "")


class TestApiOfTheFuture(OfText):
    wrong = "is written for a newer API than the core speaks"
    replace = ("manifest.py", "(1, 0)", "(1, 99)")


class TestMisspeltTarget(OfText):
    wrong = "names a class that its module does not have"
    replace = ("manifest.py", ':Coin"', ':Coins"')


class TestTargetTakesNoContext(OfText):
    wrong = "its factory takes the config alone"
    replace = ("policy.py", "(self, config, context)", "(self, config)")


class TestUnknownCapability(OfText):
    wrong = "declares a capability that does not exist"
    replace = ("manifest.py", '"admit"', '"admits"')


class TestCapitalName(OfText):
    wrong = "its component's name has a capital and a hyphen"
    replace = ("manifest.py", '"coin"', '"Fair-Coin"')


class TestNoSummary(OfText):
    wrong = "its summary is empty"
    replace = ("manifest.py", "admits every other prompt", "")


class TestAcceptsMisspeltKeys(OfText):
    wrong = "its config model takes unknown keys"
    replace = ("config.py", 'extra="forbid"', 'extra="ignore"')


class TestAcceptsMisspeltKeysInside(OfText):
    wrong = "a table inside its config takes unknown keys"
    replace = (
        "config.py",
        'class Schedule(BaseModel):\n    model_config = ConfigDict(frozen=True, extra="forbid")',
        "class Schedule(BaseModel):\n    model_config = ConfigDict(frozen=True)",
    )


class TestMutableConfig(OfText):
    wrong = "its config can be changed after it was validated"
    replace = ("config.py", "frozen=True, ", "")


class TestForgottenMark(OfText):
    wrong = "its hook is not marked with @hookimpl"
    replace = ("manifest.py", "@hookimpl\n", "")


class TestUndescribedKey(OfText):
    wrong = "a key has no description"
    replace = ("config.py", ', description="Share of the prompts that is admitted."', "")


class TestNoEntryPoint(OfText):
    wrong = "its distribution does not name it as an entry point, so that nobody finds it"
    caught_by = "test_it_is_discovered"
    entry_point = False


class TestLongSummary(OfText):
    wrong = "its summary is a paragraph"
    caught_by = "test_summaries_describe_the_components"
    replace = ("manifest.py", "admits every other prompt", "admits a prompt, then not, " * 4)
