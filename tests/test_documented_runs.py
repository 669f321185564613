"""The runs of the documents and of the examples are valid."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import dev
import pytest
from pages.markdown import FENCED
from workspace import ROOT, guides

from astraflow_runtime.config.loading import load_config

EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_example_validates(file: Path) -> None:
    loaded = load_config(file)
    assert loaded.config.run.name
    assert {selected.kind for selected, _ in loaded.components.values()} >= {"engine", "trainer"}


def test_the_quickstart_needs_only_what_make_run_installs() -> None:
    installed = {package.name for package in dev.packages() if package.quickstart}
    loaded = load_config(ROOT / "examples" / "quickstart.toml")
    needed = {selected.distribution for selected, _ in loaded.components.values()}
    assert needed <= installed, f"missing from `make run`: {needed - installed}"


def whole_runs() -> Iterator[tuple[str, str]]:
    """Name and text of each TOML block of a guide that is a whole run."""
    for file in guides():
        for _, language, block in FENCED.findall(file.read_text(encoding="utf-8")):
            whole = "[run]" in block and "extends" not in block
            if language == "toml" and whole and "[workflow]" in block:
                yield f"{file.name}-{tomllib.loads(block)['run']['name']}", block


@pytest.mark.parametrize(("name", "text"), [pytest.param(*run, id=run[0]) for run in whole_runs()])
def test_a_whole_run_of_a_guide_is_valid(name: str, text: str) -> None:
    assert load_config(tomllib.loads(text)).config.run.steps > 0
