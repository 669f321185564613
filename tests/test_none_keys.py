"""Every number that can be left out, of the core and of all components, is switched off by the same word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from workspace import ROOT

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.models import RunConfig
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.config.saved import dump_toml
from astraflow_runtime.config.show import values

NULL, WORD = {"type": "null"}, {"const": "none", "type": "string"}


def models() -> Iterator[tuple[str, dict[str, Any]]]:
    schema = RunConfig.model_json_schema()
    yield from schema["$defs"].items()
    catalog = Catalog.discover()
    for kind in Kind:
        for found in catalog.components(kind):
            if found.packaged and (model := found.config_model()) is not None:
                schema = model.model_json_schema()
                yield f"{kind} {found.component.name}", schema
                yield from schema.get("$defs", {}).items()


def test_numbers_that_can_be_left_out_take_the_word() -> None:
    wrong, taking = [], 0
    for name, schema in models():
        for key, entry in schema.get("properties", {}).items():
            options = entry.get("anyOf", [])
            if NULL not in options or not {"number", "integer"} & {o.get("type") for o in options}:
                continue
            # A default that depends on something else has no word: leaving the key out means that.
            derived = "efault: " in entry["description"] or "default, and" in entry["description"]
            taking += WORD in options
            if derived == (WORD in options):
                wrong.append(f"{name}: {key}: {entry['description']}")
    assert taking > 40
    assert wrong == []


@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [
        ("ppo", ["value_clip", "dual_clip", "log_ratio_clamp"]),
        ("sapo", ["log_ratio_clamp"]),
        ("opo", ["dual_clip", "log_ratio_clamp"]),
        ("rloo", ["dual_clip", "log_ratio_clamp"]),
        ("reinforce_pp", ["dual_clip", "log_ratio_clamp"]),
    ],
)
def test_a_clip_is_switched_off_in_a_file_and_stays_off(
    algorithm: str, keys: list[str], tmp_path: Path
) -> None:
    table = ", ".join([f'use = "{algorithm}"', *(f'{key} = "none"' for key in keys)])
    override = f"policies.solver.algorithm={{ {table} }}"
    loaded = load_config(ROOT / "examples" / "quickstart.toml", [override])
    (tmp_path / "config.toml").write_text(dump_toml(loaded.config), encoding="utf-8")
    shown = {v.key: v.value for v in values(loaded)}
    for again in (loaded, load_config(tmp_path / "config.toml")):
        _, given = again.components["policies.solver.algorithm"]
        for key in keys:
            assert getattr(given, key) is None
            assert shown[f"policies.solver.algorithm.{key}"] == "none"
