"""Every component has a page that agrees with its keys, and a docstring that names its public variant."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.catalog import Catalog
from astraflow_plugin_losses.manifest import astraflow_algorithms
from astraflow_runtime.cli.installation.docstrings import docstring_of

HERE = Path(__file__).parents[1]
COMPONENTS = {component.name: component for component in astraflow_algorithms()}
PARTS = ("## Formula", "## Options", "## When it goes wrong", "## What to watch")
ROW = re.compile(r"^\| `(\w+)` \| (`(?P<value>[^|]*)`|none|required) \|", re.MULTILINE)


def page(name: str) -> str:
    return (HERE / "docs" / f"{name}.md").read_text(encoding="utf-8")


def same(told: str | None, default: Any) -> bool:
    if told is None:
        return default is None
    if isinstance(default, tuple):
        shown = ", ".join(
            "{ " + ", ".join(f"{k} = {json.dumps(v)}" for k, v in entry) + " }" for entry in default
        )
        return told == f"[{shown}]"
    return bool(json.loads(told) == default)


@pytest.mark.parametrize("name", COMPONENTS)
def test_the_page_of_a_component_shows_its_defaults(name: str) -> None:
    text = page(name)
    assert [part for part in PARTS if f"\n{part}\n" in text] == list(PARTS)
    assert text.startswith(f"# `{name}`\n") and re.search(r"Variants?: ", text)
    model = Catalog.discover().select("algorithm", name).config_model()
    assert model is not None
    told = {match[1]: match for match in ROW.finditer(text)}
    assert told, "a table of options"
    for key, match in told.items():
        field = model.model_fields[key]
        if match[2] == "required":
            assert field.is_required(), key
        else:
            assert same(match["value"], field.default), (key, match[2], field.default)
    keys = set(model.model_fields)
    for key in re.findall(r"`(\w+) = ", text.partition("## Options")[2]):
        assert key in keys | {"data", "level", "max_staleness", "trainer"}, key


@pytest.mark.parametrize("name", COMPONENTS)
def test_the_docstring_names_a_public_variant(name: str) -> None:
    text = " ".join((docstring_of(COMPONENTS[name].target) or "").split())
    assert re.search(r"variant|as in (TRL|the Tinker)", text), text
    assert re.search(
        r"(TRL|verl|AReaL|AstraFlow) \d+\.\d+|Tinker cookbook|of prime-rl|published code", text
    ), text
    assert "arXiv" in text or name in ("opd", "dapo", "decoupled_ppo", "flash_reinforce"), text
    assert re.search(r"arXiv \d{4}\.\d{5}", page(name)) or name in ("sft", "flash_reinforce"), name


def test_the_readme_leads_to_every_page() -> None:
    text = (HERE / "README.md").read_text(encoding="utf-8")
    for name in [*COMPONENTS, "shared"]:
        assert f"(docs/{name}.md)" in text, name
    pages = {path.stem for path in (HERE / "docs").glob("*.md")}
    assert pages == {*COMPONENTS, "shared"}
