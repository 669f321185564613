"""``astraflow plugin new``: what it writes, what it refuses, and that the tests of what it writes pass."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from astraflow_contrib_plugin.scaffolding import KINDS, PluginNames, files_of, write
from astraflow_core.component import Kind
from astraflow_core.errors import UserError
from astraflow_runtime.cli import main

DEADLINE_S = 150
MODULE = "_".join(("astraflow", "plugin", "short_answer"))


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
    } | ({"base.toml", "run.toml"} if kind != "command" else set()) == files.keys()
    for name, text in files.items():
        left = [w for w in ("sample", "SampleThing", "<!--") if w in text and name != "LICENSE"]
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
        ("engine", "x", "no template for the kind 'engine'; docs/engines.md"),
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
    assert main(["plugin", "new", kind, name]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_every_kind_has_a_template_or_a_page() -> None:
    for kind in Kind:
        if kind not in KINDS:
            with pytest.raises(UserError, match=r"docs/[a-z-]+\.md describes"):
                PluginNames(kind, "x")


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
    assert "make it first" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_made_installs_and_passes_its_tests(kind: str, tmp_path: Path) -> None:
    folder, site = tmp_path / "made", tmp_path / "site"
    write(folder, files_of(PluginNames(kind, "short_answer")))
    python, environment = sys.executable, {**os.environ, "PYTHONPATH": str(site)}

    def run(*arguments: str, expected: int = 0) -> str:
        done = subprocess.run(
            [python, "-m", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == expected, done.stdout + done.stderr
        return done.stdout + done.stderr

    pip = ("pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, "--target", str(site), ".")
    run("ruff", "check", ".")
    # The modules of AstraFlow are read once for all kinds.
    run("mypy", "--cache-dir", str(tmp_path.parent / "mypy"), "src")
    assert " passed" in run("pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider")
    if kind == "command":
        assert "usage: astraflow short-answer" in run("astraflow_runtime", "short-answer", "--help")
        return
    run("astraflow_runtime", "config", "show", "run.toml")
    del environment["PYTHONPATH"]
    refused = run("astraflow_runtime", "config", "show", "run.toml", expected=2)
    assert "short_answer" in refused
