"""Selection, validation and building of components."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astraflow_core.config.models import ComponentTable
from astraflow_core.errors import ConfigError, PluginError
from astraflow_core.installed.discovery import find_unregistered
from astraflow_core.types import ComponentContext, RunInfo
from astraflow_runtime.published import index

CONTEXT = ComponentContext(
    RunInfo("r", 0, 1, 0, ("p",), Path("r")), "trainer", "p", 1, Path("r/state")
)
ONE_LOSS = """
@hookimpl
def astraflow_algorithms():
    return [Component("grpo_like", "{module}:Loss", "a loss", {config!r})]
"""


def table(use: str, **options: Any) -> ComponentTable:
    return ComponentTable(use=use, **options)


def test_ambiguous_names_ask_which(site: Any, manifest: str) -> None:
    for name in ("grpo_like", "dup"):
        site.add(name, manifest + ONE_LOSS.format(module=f"{name}_parts", config=None))
    catalog = site.catalog()
    with pytest.raises(PluginError) as caught:
        catalog.select("algorithm", "grpo_like")
    assert str(caught.value) == (
        "algorithm 'grpo_like' is provided by 2 plugins; name one of: 'dup/grpo_like' or 'grpo_like/grpo_like'"
    )
    assert catalog.select("algorithm", "dup/grpo_like").component.target == "dup_parts:Loss"


def refusal(site: Any, kind: str, use: str) -> str:
    with pytest.raises(PluginError) as caught:
        site.catalog().select(kind, use)
    return str(caught.value)


def test_missing_components_say_what_to_do(site: Any, manifest: str) -> None:
    site.toy()
    site.add("half_broken", manifest + "\nimport not_there")
    text = refusal(site, "data_policy", "toy_fliter")
    assert "did you mean 'toy_filter'?" in text
    assert "pip install" not in text
    assert "'half_broken' (its manifest" in text


def test_what_provides_a_component_of_ours_is_named_and_no_other_distribution(
    site: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "dev.py setup" in refusal(site, "algorithm", "m2po")
    monkeypatch.setattr(index, "_CHECKOUT", tmp_path)
    known = "astraflow-plugin-losses provides it: pip install astraflow-plugin-losses"
    assert known in refusal(site, "algorithm", "m2po")
    assert "did you mean 'm2po'? (pip install astraflow-plugin-losses)" in refusal(
        site, "algorithm", "m3po"
    )
    assert "pip install" not in refusal(site, "algorithm", "xyzzy")


def test_the_right_kind_of_a_name_is_reported(site: Any) -> None:
    site.toy()
    assert "'toy_loss' is an algorithm, not a trainer" in refusal(site, "trainer", "toy_loss")
    assert "'m2po' is an algorithm, not a data policy" in refusal(site, "data_policy", "m2po")


@pytest.mark.parametrize(
    ("group", "problem"),
    [
        ("astraflow.plugins", "its entry point is in the group 'astraflow.plugins'"),
        ("", "it has no entry point"),
    ],
)
def test_a_plugin_that_cannot_be_found_is_reported(site: Any, group: str, problem: str) -> None:
    info = site.folder / "astraflow_plugin_lost-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: astraflow-plugin-lost\nVersion: 0.1\n"
    )
    if group:
        (info / "entry_points.txt").write_text(f"[{group}]\nlost = lost_manifest\n")
    text = refusal(site, "algorithm", "lost_loss")
    assert f"{problem}; plugins are found by [project.entry-points.astraflow]" in text
    (plugin,) = find_unregistered()
    assert (plugin.distribution, plugin.state) == ("astraflow-plugin-lost", "broken")


@pytest.mark.parametrize(
    ("use", "words"),
    [
        ("nobody/x", "no plugin 'nobody' is installed"),
        ("toy/toy_los", "did you mean 'toy_loss'"),
        ("toy/", "provides no algorithm ''"),
        ("no_such_module:Loss", "PYTHONPATH"),
        ("toy_parts:Nothing", "has no attribute 'Nothing'"),
        ("toy_parts:", "'module:attribute'"),
        ("toy_parts:TOY_CONSTANT", "has no attribute"),
        ("pathlib:os", "expected a class or a function"),
    ],
)
def test_wrong_names(site: Any, use: str, words: str) -> None:
    site.toy()
    with pytest.raises(PluginError) as caught:
        site.catalog().select("algorithm", use)
    assert words in str(caught.value)


def test_unpackaged_components_bring_config_and_capabilities(site: Any) -> None:
    (site.folder / "own_loss.py").write_text(
        "from astraflow_core.config.models import ConfigModel\n"
        "class Loss:\n"
        "    capabilities = {'entropy'}\n"
        "    class Config(ConfigModel):\n"
        "        clip: float = 0.2\n"
        "    def __init__(self, config, context): self.config = config\n"
        "def plain(config, context): return 'made'\n"
        "class Odd:\n"
        "    capabilities = {'telepathy'}\n"
    )
    catalog = site.catalog()
    selected, config = catalog.validate("algorithm", table("own_loss:Loss", clip=0.5), "a")
    assert (selected.packaged, selected.qualified) == (False, "own_loss:Loss")
    assert catalog.flags("algorithm", "own_loss:Loss") == {"entropy"}
    assert config is not None
    assert config.model_dump() == {"clip": 0.5}
    assert catalog.build("algorithm", table("own_loss:Loss"), CONTEXT).config.clip == 0.2
    assert catalog.build("algorithm", table("own_loss:plain"), CONTEXT) == "made"
    with pytest.raises(ConfigError, match=r"a\.x: unknown key"):
        catalog.validate("algorithm", table("own_loss:plain", x=1), "a")
    with pytest.raises(PluginError, match="telepathy"):
        catalog.select("algorithm", "own_loss:Odd")


def test_every_problem_of_a_table_at_once(site: Any) -> None:
    site.toy()
    with pytest.raises(ConfigError) as caught:
        site.catalog().validate(
            "data_policy", table("toy_filter", ratoi=0.1, ratio=3, by="lifo"), "policies.p.data.0"
        )
    first, second, third = sorted(caught.value.problems)
    assert first.startswith("policies.p.data.0.by: must be 'edf' or 'fifo'; received 'lifo'")
    assert second.startswith("policies.p.data.0.ratio: must be less than or equal to 1; received 3")
    assert third == (
        "policies.p.data.0.ratoi: unknown key (received 0.1); did you mean 'ratio'? allowed: by, ratio"
    )


def test_alternatives_of_a_key_share_a_line(site: Any) -> None:
    site.toy()
    with pytest.raises(ConfigError) as caught:
        site.catalog().validate("trainer", table("toy_trainer", schedule="soon"), "t")
    (problem,) = caught.value.problems
    assert problem.startswith("t.schedule: must be a valid number")
    assert "or must be a valid list; received 'soon'" in problem


def test_a_component_is_built_with_its_validated_config(site: Any) -> None:
    site.toy()
    part = site.catalog().build("engine", table("toy_engine", slots=2), CONTEXT)
    assert (part.config.slots, part.context) == (2, CONTEXT)


def test_config_models_must_refuse_unknown_keys(site: Any, manifest: str) -> None:
    site.add(
        "lax",
        manifest + ONE_LOSS.format(module="lax_parts", config="lax_parts:Lax"),
        modules={"lax_parts": "import pydantic\nclass Lax(pydantic.BaseModel): pass\n"},
    )
    with pytest.raises(PluginError, match="forbids unknown keys"):
        site.catalog().validate("algorithm", table("grpo_like"), "a")


@pytest.mark.parametrize("where", ["import", "factory"])
def test_a_missing_backend_names_the_extra(site: Any, manifest: str, where: str) -> None:
    body = "import huge_backend\n" if where == "import" else ""
    inside = "import huge_backend" if where == "factory" else "pass"
    site.add(
        "heavy",
        manifest + ONE_LOSS.format(module="heavy_parts", config=None),
        distribution="astraflow-plugin-heavy",
        metadata=(
            "Provides-Extra: runtime\n"
            "Requires-Dist: pytest\n"
            'Requires-Dist: huge-backend>=2; extra == "runtime"\n'
            'Requires-Dist: never-here; extra == "runtime" and python_version < "3"\n'
            'Requires-Dist: pluggy>=99; extra == "runtime"\n'
        ),
        modules={"heavy_parts": f"{body}def Loss(config, context):\n    {inside}\n"},
    )
    with pytest.raises(PluginError) as caught:
        site.catalog().build("algorithm", table("grpo_like"), CONTEXT)
    text = str(caught.value)
    assert "pip install 'astraflow-plugin-heavy[runtime]'" in text
    assert "huge-backend>=2 (not installed)" in text
    assert "pluggy>=99 (1" in text
    assert "never-here" not in text
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_an_import_that_fails_otherwise_is_not_blamed_on_the_extra(
    site: Any, manifest: str
) -> None:
    site.add(
        "odd",
        manifest + ONE_LOSS.format(module="misspelt_import_parts", config=None),
        modules={"misspelt_import_parts": "from pathlib import Nothing\n"},
    )
    with pytest.raises(PluginError, match=r"of fake-odd 1\.0 cannot be imported: .*Nothing"):
        site.catalog().build("algorithm", table("grpo_like"), CONTEXT)


def test_a_module_that_raises_is_reported_like_one_that_is_missing(
    site: Any, manifest: str
) -> None:
    site.add(
        "torn",
        manifest + ONE_LOSS.format(module="torn_parts", config=None),
        modules={"torn_parts": "raise RuntimeError('other driver')\n"},
    )
    with pytest.raises(
        PluginError, match=r"of fake-torn 1\.0 cannot be .*: RuntimeError: other"
    ) as caught:
        site.catalog().build("algorithm", table("grpo_like"), CONTEXT)
    assert isinstance(caught.value.__cause__, RuntimeError)
