"""``astraflow plugin new``: what it writes, what it refuses, and that the tests of what it writes pass."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from astraflow_contrib_plugin.from_example import examples, files_of_example
from astraflow_contrib_plugin.scaffolding import KINDS, PluginNames, camel, files_of
from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_runtime.cli import main

MODULE = "_".join(("astraflow", "plugin", "short_answer"))
LEFT = ("sample_thing", "sample-thing", "SampleThing", "sample kind", "<!--")
EXTRA = {
    "command": (),
    "engine": ("run.toml", f"src/{MODULE}/sampled.py"),
    "trainer": ("run.toml",),
}
"""Files beside those of every kind, of those that extend no base.toml."""


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_template_is_left(kind: str) -> None:
    files = files_of(PluginNames(kind, "short_answer"))
    assert {
        ".github/workflows/ci.yml",
        ".gitignore",
        "LICENSE",
        "README.md",
        "pyproject.toml",
        f"src/{MODULE}/__init__.py",
        f"src/{MODULE}/component.py",
        f"src/{MODULE}/manifest.py",
        f"src/{MODULE}/py.typed",
        "tests/test_conformance.py",
        *EXTRA.get(kind, ("base.toml", "run.toml")),
    } == files.keys()
    for name, text in files.items():
        left = [w for w in LEFT if w in text]
        assert not left, f"{name} still has {left}"
        if name.endswith(".py"):
            ast.parse(text, name)
        if name.endswith(".toml"):
            tomllib.loads(text)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert project["name"] == "astraflow-plugin-short-answer"
    assert project["entry-points"]["astraflow"] == {"short_answer": f"{MODULE}.manifest"}


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("rewrd", "x", "unknown kind 'rewrd'; did you mean 'reward'?"),
        ("reward --from-example", "x", "there is no example of the kind 'reward'"),
        ("reward", "no-identifier", "NAME 'no-identifier'"),
        ("reward", "../up", "NAME '../up'"),
        ("reward", "class", "no keyword of Python"),
        ("reward", "exact", "the reward 'exact' is installed already (rewards/exact)"),
        ("command", "top", "the command 'top' is installed already (astraflow-runtime)"),
    ],
)
def test_what_cannot_be_made_is_refused(
    kind: str,
    name: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plugin", "new", *kind.split(), name]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_every_kind_has_a_template() -> None:
    assert set(KINDS) == {*Kind, "command"}


@pytest.mark.parametrize("kind", sorted(examples()))
def test_nothing_of_the_name_of_an_example_is_left(kind: str) -> None:
    old = examples()[kind]["name"]
    spellings = (
        f"astraflow_plugin_{old}", f"astraflow-plugin-{old.replace('_', '-')}", f'"{old}"', f"`{old}`",
        f'"{old.replace("_", "-")}"', f"class {camel(old)}", f"Test{camel(old)}",
    )  # fmt: skip
    files = files_of_example(PluginNames(kind, "short_answer"))
    for name, text in files.items():
        assert not [word for word in (*spellings, *LEFT) if word in text + name], name
        if name.endswith(".py"):
            ast.parse(text, name)
        if name.endswith(".toml"):
            tomllib.loads(text)
    assert not re.search(r"\]\(\.\.", files["README.md"])
    assert {"LICENSE", f"src/{MODULE}/py.typed", ".github/workflows/ci.yml"} <= files.keys()
    assert f"src/{MODULE}/component.py" not in files
    names = "ShortAnswer" if kind != "command" else "short-answer"
    assert any(names in text for name, text in files.items() if name.startswith(f"src/{MODULE}/"))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "command"])
def test_the_extra_run_has_what_the_run_names(kind: str) -> None:
    files = files_of(PluginNames(kind, "short_answer"))
    project = tomllib.loads(files["pyproject.toml"])["project"]["optional-dependencies"]
    assert any("torch" in each for each in project["test"]) == (kind == "algorithm")
    extra = {re.split(r"[\[>]", each)[0] for each in project["run"]}
    config = files["run.toml"] + files.get("base.toml", "")
    named = set(re.findall(r'\buse = "([a-z_]+)"', config)) - {"short_answer"}
    named |= {"three_zones"}  # the rule of [balance] where none is named
    catalog = Catalog.discover()
    found = [
        (selected.component.name, selected.distribution)
        for each in Kind
        for selected in catalog.components(each)
        if selected.component.name in named
    ]
    assert {name for name, _ in found} == named
    assert {distribution for _, distribution in found} <= extra
    assert ("astraflow-testing" in extra) == ("astraflow_testing" in config)
    assert "astraflow-contrib-tiny-models" in extra and "tiny:" in config


def test_the_examples_are_those_of_the_documents() -> None:
    """In a clone; an installation has no other."""
    root = Path(__file__).parents[4] / "examples" / "plugins"
    for kind, example in examples().items():
        for name, text in example["files"].items():
            assert (root / example["name"] / name).read_text("utf-8") == text, (kind, name)


def test_a_folder_that_exists_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    command = ["plugin", "new", "reward", "short_answer", "--directory"]
    assert main([*command, str(folder)]) == 0
    assert f"cd {folder}" in capsys.readouterr().out
    (folder / "README.md").write_text("mine")
    assert main([*command, str(folder)]) == 2
    assert "exists; remove it" in capsys.readouterr().err
    assert (folder / "README.md").read_text() == "mine"
    assert main([*command, str(tmp_path / "none" / "mine")]) == 2
    assert "create it first" in capsys.readouterr().err
