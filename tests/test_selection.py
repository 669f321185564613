"""Which tests are pure, and which a change asks for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import durations
import pytest
import selection
from workspace import ROOT, tracked_files


def test_a_package_asks_for_those_that_depend_on_it() -> None:
    needs = {"core": set(), "lib": {"core"}, "a": {"core", "lib"}, "b": {"a"}, "other": {"core"}}

    users = selection.dependents(needs)

    assert users["lib"] == {"a", "b"}
    assert users["core"] == {"lib", "a", "b", "other"}
    assert users["other"] == set()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (["core/src/astraflow_core/types.py"], {*selection.EVERYWHERE}),
        (["constraints.txt", "docs/overview.md"], {*selection.EVERYWHERE}),
        (["docs/overview.md", "core/README.md"], {*selection.PAGES}),
        (["scripts/dev.py"], {"tests"}),
        (["libs/wire/tests/test_units.py"], {"libs/wire/tests/test_units.py"}),
        (["libs/wire/tests/test_units.py", "libs/wire/tests/fakes.py"], {"libs/wire/tests"}),
        (["libs/wire/tests/test_that_is_gone.py"], set()),
        (
            ["plugins/data_policies/greso/src/astraflow_plugin_greso/policy.py"],
            {"plugins/data_policies/greso/tests", *selection.PAGES},
        ),
    ],
)
def test_what_a_change_asks_for(changed: list[str], expected: set[str]) -> None:
    assert set(selection.tests_for(changed)) == expected


def test_a_library_asks_for_its_plugins() -> None:
    chosen = selection.tests_for(["libs/torch_training/pyproject.toml"])

    assert {"libs/torch_training/tests", "plugins/trainers/torch/tests"} <= set(chosen)
    assert "plugins/data_policies/greso/tests" not in chosen


def test_what_differs_from_the_base_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True
        )

    def commit(name: str) -> None:
        (tmp_path / name).write_text("1")
        git("add", name)
        git("commit", "-m", name)

    git("init", "-b", "base")
    commit("old")
    git("checkout", "-b", "mine")
    commit("committed")
    git("checkout", "base")
    commit("of others")
    git("checkout", "mine")
    (tmp_path / "old").write_text("2")
    (tmp_path / "new").write_text("1")
    monkeypatch.setattr(selection, "ROOT", tmp_path)

    assert set(selection.changed_files("base")) == {"committed", "old", "new"}
    with pytest.raises(selection.dev.Failure, match="no-such-base"):
        selection.changed_files("no-such-base")


def test_the_arguments_of_pytest_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {"origin/main": ["scripts/dev.py"], "last": []}
    monkeypatch.setattr(selection, "changed_files", changed.__getitem__)

    assert selection.of_changes(["-x", "--changed"]) == ["-x", "tests"]
    assert selection.of_changes(["--changed=last", "-x"]) == ["-x", "--version"]


def test_pure_files_reach_no_backend_and_no_process() -> None:
    runtime, wire = ROOT / "runtime" / "tests", ROOT / "libs" / "wire" / "tests"

    assert "torch" in selection.impurities(ROOT / "plugins/engines/torch/tests/test_generation.py")
    assert "subprocess" in selection.impurities(Path(__file__))
    mcp = selection.impurities(ROOT / "contrib/tools/tests/test_mcp_environment.py")
    assert "mcp" in {name.partition(".")[0] for name in mcp}
    assert not selection.impurities(wire / "test_units.py")
    # Through a helper beside it, and through a fixture.
    assert "subprocess" in selection.impurities(runtime / "launch" / "test_resume.py")
    assert "subprocess" in selection.impurities(wire / "test_disk.py")
    chosen = selection.pure_files()
    assert chosen
    assert not set(chosen) & set(durations.read()["files"])
    assert not any(selection.impurities(ROOT / file) for file in chosen)


def test_property_tests_follow_the_profile() -> None:
    chosen = selection.property_files()

    assert "libs/wire/tests/test_frames.py" in chosen
    fixed = [f for f in chosen if "derandomize=True" in (ROOT / f).read_text(encoding="utf-8")]
    assert not fixed, "`make explore` could draw nothing new; conftest.py derandomises all others"


def test_heavy_tests_are_found_by_the_text_of_their_file() -> None:
    """So no conftest.py and no suite that others inherit may mark them, but for the suites that `tiers.SLOW_DEMANDS` names."""
    marks = ("mark." + "slow", "mark." + "backend")  # not in this file
    others = [
        file
        for file in tracked_files()
        if file.suffix == ".py" and not file.name.startswith("test_")
        if any(mark in file.read_text(encoding="utf-8") for mark in marks)
    ]
    assert others == []
    slow = selection.marked_files("slow")
    assert slow[0].startswith("tests/") and slow[-1].startswith(
        ("core/", "libs/", "runtime/", "testing/", "contrib/")
    )
    assert "plugins/transports/shm/tests/test_conformance.py" in slow
    assert not [name for name in slow if "scaffold" in name or name.startswith("examples/")]
    assert "plugins/engines/vllm/tests/test_backend.py" in selection.marked_files("backend")
