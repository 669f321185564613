"""A value of another type is refused, in a file and by ``--set``, also inside lists, tables and unions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from astraflow_core.config.load import read_config
from astraflow_core.config.models import ConfigModel
from astraflow_core.config.or_none import OrNone
from astraflow_core.errors import ConfigError


class Inner(ConfigModel):
    count: int = 1


class Keys(ConfigModel):
    count: Annotated[int, Field(ge=1)] = 1
    rate: Annotated[float, Field(gt=0)] = 1.0
    flag: bool = False
    threads: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    most: OrNone[float] = None
    several: tuple[int, ...] = ()
    weights: dict[str, float] | None = None
    inner: Inner = Inner()
    inners: tuple[Inner, ...] = ()
    either: bool | float | str = "x"


@pytest.mark.parametrize(
    "table",
    [
        {"count": True},
        {"count": "1"},
        {"count": 1.5},
        {"rate": True},
        {"rate": "1.0"},
        {"flag": 1},
        {"flag": 0.0},
        {"flag": "true"},
        {"threads": True},
        {"threads": "2"},
        {"most": True},
        {"most": "1"},
        {"several": [1, True]},
        {"several": ["1"]},
        {"weights": {"a": True}},
        {"inner": {"count": True}},
        {"inners": [{"count": "1"}]},
    ],
    ids=str,
)
def test_another_type_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Keys.model_validate(table)


def test_what_is_meant_is_taken() -> None:
    keys = Keys.model_validate(
        {
            "count": 1e6,
            "rate": 2,
            "flag": True,
            "threads": 2,
            "most": "none",
            "several": [1, 2.0],
            "weights": {"a": 1},
            "inners": [{"count": 3}],
        }
    )
    assert (keys.count, keys.rate, keys.flag, keys.threads) == (1_000_000, 2.0, True, 2)
    assert type(keys.count) is int and type(keys.rate) is float
    assert (keys.most, keys.several, keys.weights) == (None, (1, 2), {"a": 1.0})
    assert keys.inners == (Inner(count=3),)
    values = [Keys.model_validate({"either": v}).either for v in (True, 2.5, "y")]
    assert values == [True, 2.5, "y"]
    assert Keys.model_validate_json(keys.model_dump_json()) == keys


def test_schemas_for_documents_stay_as_they_are() -> None:
    properties = Keys.model_json_schema()["properties"]
    assert properties["count"] == {"default": 1, "minimum": 1, "title": "Count", "type": "integer"}
    assert properties["flag"]["type"] == "boolean"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("run.steps=true", "run.steps: must be a valid integer; received True"),
        ('run.steps="3"', "run.steps: must be a valid integer; received '3'"),
        ("sampling.temperature=false", "sampling.temperature: must be a valid number"),
        ("run.colocated=1", "run.colocated: must be a valid boolean; received 1"),
        ("policies.solver.engine.replicas=true", "policies.solver.engine.replicas: must be"),
    ],
)
def test_the_line_says_key_and_value(run_file: Path, override: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(run_file, [override])
    assert said in str(caught.value)
    key, _, value = override.rpartition("=")
    table: dict[str, Any] = {}
    for part in reversed(key.split(".")):
        table = {part: table or {"true": True, "false": False, "1": 1, '"3"': "3"}[value]}
    import tomli_w

    child = run_file.with_name("child.toml")
    child.write_text(tomli_w.dumps({"extends": run_file.name, **table}))
    with pytest.raises(ConfigError) as caught:
        read_config(child)
    assert said in str(caught.value)
