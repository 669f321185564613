"""Keys explain themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astraflow_core.config.models import ComponentTable
from astraflow_core.errors import UserError
from astraflow_runtime.config.explain import KeyDescription, core_keys, explain, set_in_run
from astraflow_runtime.config.loading import load_config


def test_a_key_of_the_core(site: Any) -> None:
    (key,) = explain("policies.solver.batch_sequences", site.catalog())
    assert key == KeyDescription(
        "policies.NAME.batch_sequences", "integer ≥ 1", None, "Sequences per batch."
    )
    (by_last_name,) = explain("group_size", site.catalog())
    assert by_last_name.path == "run.group_size"
    assert by_last_name.default == "8"
    tables = explain("policies.x.data.0", site.catalog())
    assert [key.path for key in tables] == [
        f"policies.NAME.data.N.{key}" for key in ("use", "name", "shadow")
    ]


def test_keys_of_a_component(site: Any) -> None:
    site.toy()
    catalog = site.catalog()
    lr, schedule = explain("trainer/toy_trainer", catalog)
    assert (lr.path, lr.type, lr.description) == (
        "trainer/toy_trainer.lr",
        "float > 0",
        "Step size.",
    )
    assert schedule.type.startswith("float or list of")
    assert explain("trainer/toy_trainer.lr", catalog) == [lr]
    (by,) = explain("data_policy/toy_filter.by", catalog)
    assert by.type == '"edf" or "fifo"'
    with pytest.raises(UserError, match="takes no keys"):
        explain("reward/toy_match", catalog)


def test_a_key_of_a_component_by_its_place_in_a_run(
    site: Any, run_file: Path, manifest: str
) -> None:
    other = "@hookimpl\ndef astraflow_trainers(): return [Component('other', 'o:P', 's', 'o:C')]\n"
    config = "from astraflow_core.config.models import ConfigModel\nclass C(ConfigModel):\n    lr: float = 1.0\n"
    site.add("other", manifest + other, modules={"o": config})
    keys = explain("policies.solver.trainer.lr", site.catalog())
    assert [key.path for key in keys] == ["trainer/other/other.lr", "trainer/toy/toy_trainer.lr"]
    model = ("policies.solver.data=[{use='toy_filter'}]",)
    loaded = load_config(run_file, model)
    (key,) = explain("policies.solver.trainer.lr", loaded.catalog, loaded)
    assert key.path == "trainer/toy/toy_trainer.lr"
    (ratio,) = explain("policies.solver.data.0.ratio", loaded.catalog, loaded)
    assert ratio.path == "data_policy/toy/toy_filter.ratio"
    with pytest.raises(UserError, match=r"no key 'policies\.solver\.trainer\.lrr'"):
        explain("policies.solver.trainer.lrr", loaded.catalog, loaded)


def test_a_table_within_that_of_another_component_is_known_with_the_run(
    site: Any, run_file: Path, manifest: str
) -> None:
    plays = "@hookimpl\ndef astraflow_workflows(): return [Component('plays', 'w:P', 's', 'w:C')]\n"
    config = (
        "from astraflow_core.config.models import ConfigModel\n"
        "class C(ConfigModel):\n    environment: dict\nclass P: ...\n"
    )
    site.add("plays", manifest + plays, modules={"w": config})
    room = ("environment.use=toy_room", "environment.path=levels", "use=plays")
    loaded = load_config(run_file, [f"workflow.{each}" for each in room], site.catalog())
    (key,) = explain("workflow.environment.path", loaded.catalog, loaded)
    assert key.path == "environment/toy/toy_room.path"
    (key,) = explain("workflow.environment", loaded.catalog, loaded)
    assert key.path == "workflow/plays/plays.environment"


@pytest.mark.parametrize("wrong", ["run.max_stalenes", "max_stalenes"])
def test_unknown_keys_suggest(site: Any, wrong: str) -> None:
    with pytest.raises(UserError, match=r"did you mean '(run\.)?max_staleness'"):
        explain(wrong, site.catalog())


def test_every_key_of_the_core_is_described_and_there_are_fewer_than_80() -> None:
    keys = core_keys()
    assert [key.path for key in keys if not key.description] == []
    own = {key.path for key in keys if not key.path.endswith(".use")}
    assert len(own) < 80
    assert len({key.path for key in keys}) == len(keys)
    assert ComponentTable.model_fields.keys() == {"use"}


def test_the_values_of_a_run_are_shown(
    site: Any, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = load_config(run_file, ["policies.solver.trainer.lr=0.125"], site.catalog())
    for asked, shown in (
        ("policies.solver.trainer.lr", {"policies.solver.trainer.lr": 0.125}),
        ("run.steps", {"run.steps": loaded.config.run.steps}),
        ("steps", {"run.steps": loaded.config.run.steps}),
        ("policies.solver.batch_sequences", {"policies.solver.batch_sequences": 8}),
    ):
        (key,) = explain(asked, loaded.catalog, loaded)
        assert {each.key: each.value for each in set_in_run(asked, key, loaded)} == shown
    (key,) = explain("steps", loaded.catalog, loaded)
    (value,) = set_in_run("steps", key, loaded)
    assert value.origin == str(run_file)
