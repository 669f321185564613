"""The word of a key that can be switched off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from astraflow_core.config.load import read_config
from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.config.or_none import OrNone
from astraflow_runtime.config.explain import explain
from astraflow_runtime.config.saved import dump_toml


class Keys(ConfigModel):
    limit: OrNone[PositiveInt] = 3


@pytest.mark.parametrize(("given", "value"), [("none", None), (None, None), (7, 7)])
def test_the_word_is_no_value(given: Any, value: int | None) -> None:
    assert Keys(limit=given).limit == value
    assert Keys().limit == 3


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("off", 'must be a number or "none"'),
        ("None", 'must be a number or "none"'),
        (0, "greater than or equal to 1"),
        ([1], "valid integer"),
    ],
)
def test_other_words_are_refused(given: Any, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        Keys(limit=given)


def test_a_file_switches_off_what_the_one_sets_that_it_extends(
    site: Any, run_file: Path, tmp_path: Path
) -> None:
    catalog = site.catalog()
    base = tmp_path / "base.toml"
    base.write_text(dump_toml(read_config(run_file, ["run.group_deadline_s=9"], catalog).config))
    own = tmp_path / "own.toml"
    own.write_text('extends = "base.toml"\n[run]\ngroup_deadline_s = "none"\n')
    assert read_config(base, (), catalog).config.run.group_deadline_s == 9
    assert read_config(own, (), catalog).config.run.group_deadline_s is None
    set_off = read_config(base, ["run.group_deadline_s=none"], catalog).config
    assert set_off.run.group_deadline_s is None


def test_the_word_is_among_what_a_key_takes(site: Any) -> None:
    (key,) = explain("run.group_deadline_s", site.catalog())
    assert key.type == 'float > 0 or "none" or nothing'
