"""``make release``: what it refuses, what it writes into a copy of the tree, and a release of two distributions."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import date
from email.message import Message
from pathlib import Path

import pytest
import release
import wheels
from installers import Failure
from packaging.version import Version
from releasing import building, changelog, environments, inspecting, making, stamping, upgrade
from releasing import version as versions
from releasing.stamping import Member
from workspace import ROOT, tracked_files

DAY = date(2026, 11, 26)
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")


def committed(folder: Path) -> Path:
    """A repository with the files of a folder in one commit."""
    for arguments in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "all")):
        subprocess.run([*GIT, *arguments], cwd=folder, check=True, timeout=30)
    return folder


# --- what may be released ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("new", "is not a version; expected one as in PEP 440"),
        ("v0.2.0", "did you mean '0.2.0'"),
        ("0.2.0-rc1", "did you mean '0.2.0rc1'"),
        ("0.2.0+mine", "did you mean '0.2.0'"),
        ("1!0.2", "did you mean '0.2'"),
    ],
)
def test_a_version_is_written_as_an_index_lists_it(text: str, says: str) -> None:
    with pytest.raises(Failure, match=says):
        versions.parsed(text)


def test_a_version_is_above_all_that_are_released(tmp_path: Path) -> None:
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## 0.10.0 (2026-03-01)\n\n## 0.9.1 (2026-02-01)\n"
    )
    before = versions.released(tmp_path)
    assert before == {"0.10.0": date(2026, 3, 1), "0.9.1": date(2026, 2, 1)}
    versions.check_higher(Version("0.10.1rc1"), before)
    with pytest.raises(
        Failure, match=r"0\.9\.2 is not higher than 0\.10\.0, which is released; take"
    ):
        versions.check_higher(Version("0.9.2"), before)
    with pytest.raises(Failure, match="add ARGS=--again"):
        versions.check_higher(Version("0.10.0"), before)
    assert upgrade.release_before("0.11.0", list(before)) == "0.10.0"


@pytest.mark.parametrize(
    ("version", "before"), [("0.1.0", "0.0.9"), ("1.2.3", "1.2.2"), ("2.0", "1.9.9")]
)
def test_before_the_first_release_an_older_number_stands_for_one(version: str, before: str) -> None:
    assert upgrade.release_before(version, []) == before


PROGRAM = """#!/bin/sh
trap "exit 130" INT
[ "$2" = --resume ] && { yes '"step"' | head -n 30 >> "$3/metrics.jsonl"; exit 0; }
mkdir -p runs/one
while :; do echo '"step"' >> runs/one/metrics.jsonl; sleep 0.05; done
"""
"""In the place of ``astraflow``."""


@pytest.mark.slow
def test_the_run_that_is_stopped_is_the_one_that_was_started(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "astraflow"
    other = tmp_path / "runs" / "other" / "metrics.jsonl"
    for file, text in ((program, PROGRAM), (other, '"step"' * upgrade.STEPS)):
        file.parent.mkdir(parents=True)
        file.write_text(text)
    program.chmod(0o755)
    python = program.with_name("python")
    run = upgrade.start_and_stop(python, tmp_path)
    assert run.name == "one" and run.parent.parent != tmp_path
    assert upgrade.resume(python, tmp_path, run) == "continued to its end"


def test_a_tree_with_changes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    versions.check_clean(committed(tmp_path))
    (tmp_path / "b").write_text("1")
    with pytest.raises(Failure, match=r"changes that are not committed(.|\n)*\?\? b"):
        versions.check_clean(tmp_path)
    with pytest.raises(Failure, match="git rev-parse nothing` failed"):
        versions.git(tmp_path, "rev-parse", "nothing")


# --- the changelog -----------------------------------------------------------------------------


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """A tree with a changelog and three fragments."""
    folder = tmp_path / "changelog.d"
    folder.mkdir()
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\nNewest first.\n\nNo release yet.\n")
    for name, text in {
        "README.md": "how",
        "b.fixed.md": "It works.\n",
        "a.fixed.md": "This too.\nIn two lines.\n\nAnd a paragraph.\n",
        "z.added.md": "New, see [the page](../docs/page.md).",
    }.items():
        (folder / name).write_text(text)
    return tmp_path


def test_fragments_become_a_section(told: Path) -> None:
    section = changelog.write(told, "0.1.0", DAY)
    assert section == (
        "## 0.1.0 (2026-11-26)\n\n### Added\n\n- New, see [the page](docs/page.md).\n\n### Fixed\n\n"
        "- This too.\n  In two lines.\n\n  And a paragraph.\n- It works.\n"
    )
    assert (told / "CHANGELOG.md").read_text() == f"# Changelog\n\nNewest first.\n\n{section}"
    assert [file.name for file in (told / "changelog.d").iterdir()] == ["README.md"]
    (told / "changelog.d" / "c.removed.md").write_text("Gone.")
    later = changelog.write(told, "0.2.0", DAY)
    assert (
        told / "CHANGELOG.md"
    ).read_text() == f"# Changelog\n\nNewest first.\n\n{later}\n{section}"
    assert changelog.section_of(told, "0.1.0") == section
    assert changelog.section_of(told, "0.2.0") == later
    with pytest.raises(Failure, match=r"has no fragment"):
        changelog.write(told, "0.3.0", DAY)
    with pytest.raises(Failure, match=r"has no section of 0\.3\.0"):
        changelog.section_of(told, "0.3.0")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [("x.new.md", "a", "KIND one of added"), ("x.added.md", " ", "x.added.md is empty")],
)
def test_a_wrong_fragment_is_named(told: Path, name: str, text: str, says: str) -> None:
    (told / "changelog.d" / name).write_text(text)
    with pytest.raises(Failure, match=says):
        changelog.section("1", DAY, changelog.fragments(told))


def test_the_fragments_of_this_tree_make_a_section() -> None:
    files = changelog.fragments(ROOT)
    if files:
        assert changelog.section("9.9.9", DAY, files).count("\n- ") == len(files)


# --- the version in the tree -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("astraflow-core>=0.1,<0.2", "astraflow-core>=0.3,<0.4"),
        ("astraflow-core[a,b]>=0.1,<0.2", "astraflow-core[a,b]>=0.3,<0.4"),
        ("astraflow-core==0.1.0", "astraflow-core==0.3.1"),
        ("astraflow-core>=0.3,<0.4", "astraflow-core>=0.3,<0.4"),
        ("astraflow-core>=0.1", "astraflow-core>=0.1"),
        ("astraflow-own>=0.1,<0.2", "astraflow-own>=0.1,<0.2"),
        ("astraflow-plugin-mine>=0.1,<0.2", "astraflow-plugin-mine>=0.1,<0.2"),
        ('name = "astraflow-core"', 'name = "astraflow-core"'),
        ("astraflow-core==VERSION of", "astraflow-core==VERSION of"),
    ],
)
def test_requirements_follow_the_version(text: str, new: str) -> None:
    given = {"astraflow-core": "0.3.1", "astraflow-own": "0.1.7"}
    assert stamping.following(text, given) == new


def test_a_range_of_a_first_candidate_has_it() -> None:
    assert stamping.span("0.3.0rc1") == ">=0.3.dev0,<0.4"
    assert stamping.following("astraflow-core==0.1.0", {"astraflow-core": "0.3.0rc1"}).endswith(
        "rc1"
    )


def project(folder: Path, name: str, version: str, *dependencies: str) -> None:
    module = name.replace("-", "_")
    (folder / "src" / module).mkdir(parents=True)
    (folder / "src" / module / "__init__.py").write_text(f'__version__ = "{version}"\n')
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "{name}"\nversion = "{version}"\ndependencies = {json.dumps(dependencies)}\n'
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree of three distributions, one with a version of its own."""
    project(tmp_path / "core", "astraflow-core", "0.1.0")
    project(tmp_path / "libs/wire", "astraflow-wire", "0.1.0", "astraflow-core>=0.1,<0.2", "numpy")
    project(tmp_path / "contrib/own", "astraflow-contrib-own", "7.0", "astraflow-wire==0.1.0")
    (tmp_path / stamping.API).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / stamping.API).write_text("API_VERSION = (1, 4)\n")
    (tmp_path / "tests").mkdir()
    names = {"astraflow_core.__version__": {"signature": "= '0.1.0'", "fragment": "x.added.md"}}
    (tmp_path / stamping.SURFACE).write_text(json.dumps({"released": None, "names": names}))
    return tmp_path


def test_a_copy_of_the_tree_gets_the_version(tree: Path) -> None:
    assert stamping.stamp(tree, "0.2.0") == ["astraflow-core", "astraflow-wire"]
    found = stamping.members(tree)
    assert {name: member.version for name, member in found.items()} == {
        "astraflow-core": "0.2.0", "astraflow-wire": "0.2.0", "astraflow-contrib-own": "7.0",
    }  # fmt: skip
    assert [*map(str, found["astraflow-wire"].dependencies)] == [
        "astraflow-core<0.3,>=0.2",
        "numpy",
    ]
    assert [*map(str, found["astraflow-contrib-own"].dependencies)] == ["astraflow-wire==0.2.0"]
    assert '"0.2.0"' in (tree / "core/src/astraflow_core/__init__.py").read_text()
    record = json.loads((tree / stamping.SURFACE).read_text())
    assert record["released"] == "1.4"
    assert record["names"] == {"astraflow_core.__version__": {"signature": "= '0.2.0'"}}
    chosen = building.closure(["astraflow-contrib-own"], found)
    assert [member.name for member in chosen] == list(found)
    with pytest.raises(Failure, match=r"no distribution 'astraflow-none' in this tree"):
        building.closure(["astraflow-none"], found)


# --- what is built -----------------------------------------------------------------------------


def test_builds_that_differ_are_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees = (tree, tree.with_name("other"))
    shutil.copytree(*trees)
    count = iter(range(99))

    def build(
        folders: dict[Path, str], out: Path, work: Path, epoch: int
    ) -> dict[Path, tuple[Path, Path]]:
        made = {}
        for folder, name in folders.items():
            assert (folder / "LICENSE").read_text() == "licence"
            made[folder] = (out / f"{name}.tar.gz", out / f"{name}.whl")
            made[folder][0].write_text("always alike")
            made[folder][1].write_text(str(next(count)) if name.endswith("wire") else "alike")
        return made

    for each in trees:
        (each / "LICENSE").write_text("licence")
    monkeypatch.setattr(wheels, "build", build)
    chosen = list(stamping.members(tree).values())
    with pytest.raises(Failure, match=r"two builds of the same tree differ: astraflow-wire\.whl$"):
        building.build_twice(trees, chosen, DAY, tree)


def metadata(**fields: str) -> Message:
    right = {
        "Name": "astraflow-wire", "Version": "0.2.0", "Summary": "wire", "License-Expression": "Apache-2.0",
        "Requires-Python": ">=3.11", "Description-Content-Type": "text/markdown; charset=UTF-8",
    }  # fmt: skip
    message = Message()
    for name, value in {**right, **{k.replace("_", "-"): v for k, v in fields.items()}}.items():
        for line in value.split("\n"):
            message[name] = line
    return message


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, []),
        (
            {
                "Requires_Dist": "astraflow-core>=0.2,<0.3\nnumpy>=1\nastraflow-core[x]; extra == 'y'"
            },
            [],
        ),
        ({"Version": "0.1.0"}, ["Version is 0.1.0, expected 0.2.0"]),
        ({"Summary": ""}, ["has no summary"]),
        ({"License_Expression": "MIT"}, ["License-Expression is MIT, expected Apache-2.0"]),
        ({"Requires_Python": ">=3.9"}, ["Requires-Python is >=3.9, expected >=3.11"]),
        ({"Requires_Dist": "astraflow-core>=0.1,<0.2"}, ["this release has 0.2.0"]),
        (
            {"Requires_Dist": "astraflow-core>=0.1"},
            ["requires astraflow-core without an upper bound"],
        ),
        ({"Requires_Dist": "astraflow-none>=1,<2"}, ["there is no such distribution"]),
        ({"Requires_Dist": "x @ https://example.com/x.whl"}, ["refuses a requirement with a URL"]),
    ],
)
def test_metadata_that_are_wrong_are_named(fields: dict[str, str], says: list[str]) -> None:
    given = {"astraflow-core": "0.2.0", "astraflow-wire": "0.2.0"}
    found = list(inspecting.problems(metadata(**fields), given))
    assert len(found) == len(says), found
    assert all(text in problem for text, problem in zip(says, found, strict=True)), found


def test_interpreters_are_found_by_their_version() -> None:
    assert environments.find(environments.PYTHONS[0]) is not None
    assert environments.find("3.99") is None


def test_our_distributions_are_installed_from_their_files(tmp_path: Path) -> None:
    member = Member(tmp_path, "astraflow-x", "1", (), {"runtime": ()}, quickstart=True)
    wheel = tmp_path / "x.whl"
    built = {"astraflow-x": (wheel, wheel)}
    (with_backend,) = environments.requirements([member], built, True)
    assert with_backend == f"astraflow-x[runtime] @ {wheel.as_uri()}"
    assert environments.requirements([member], built, False) == [f"astraflow-x @ {wheel.as_uri()}"]


# --- a whole release of two distributions ------------------------------------------------------

TWO = (
    "core/",
    "libs/wire/",
    "changelog.d/",
    "CHANGELOG.md",
    "LICENSE",
    ".gitignore",
    stamping.SURFACE,
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with two distributions of this one."""
    root = tmp_path / "checkout"
    for file in tracked_files():
        name = str(file.relative_to(ROOT))
        if name.startswith(TWO) and "/tests/" not in name:
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    (root / "changelog.d" / "one.added.md").write_text("One more.\n")
    return committed(root)


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A key of gpg that only this test has."""
    home = Path(tempfile.mkdtemp(prefix="gpg-"))  # the path of its socket must be short
    monkeypatch.setenv("GNUPGHOME", str(home))
    make = ("--quick-generate-key", "release@example.com", "ed25519", "sign", "never")
    subprocess.run(
        ["gpg", "-q", "--batch", "--passphrase", "", *make],
        check=True,
        capture_output=True,
        timeout=60,
    )
    yield "release@example.com"
    subprocess.run(["gpgconf", "--kill", "all"], check=False, timeout=30)
    shutil.rmtree(home)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_distributions_are_released_and_built_again(
    checkout: Path, tmp_path: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def released(again: bool, signed_by: str | None, *without: str) -> Path:
        work = tmp_path / f"work-{again}"
        work.mkdir()
        made = making.Release(checkout, "0.3.0", again, ("astraflow-wire",), work)
        release.make(made, list(without), signed_by)
        assert made.day.isoformat() in (made.place / "CHANGELOG.md").read_text()
        return made.place

    place = released(False, key, "pythons", "upgrade")
    told = capsys.readouterr().out
    assert "2 distributions" in told and f"signed by {key}" in told and "left out" in told
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    subprocess.run(check, cwd=place, check=True, capture_output=True, timeout=30)
    verify = ["gpg", "--verify", "SHA256SUMS.asc", "SHA256SUMS"]
    subprocess.run(verify, cwd=place, check=True, capture_output=True, timeout=30)

    bill = json.loads((place / "sbom.cdx.json").read_text())
    parts = {part["name"]: part for part in bill["components"]}
    assert bill["specVersion"] == "1.6" and bill["metadata"]["component"]["version"] == "0.3.0"
    assert parts["numpy"]["purl"] == f"pkg:pypi/numpy@{parts['numpy']['version']}"
    files = {each["url"] for each in parts["astraflow-wire"]["externalReferences"]}
    assert files == {"astraflow_wire-0.3.0.tar.gz", "astraflow_wire-0.3.0-py3-none-any.whl"}
    needs = {each["ref"]: each.get("dependsOn", []) for each in bill["dependencies"]}
    assert "astraflow-core@0.3.0" in needs["astraflow-wire@0.3.0"]

    with pytest.raises(Failure, match="is there already"):
        released_again = making.Release(checkout, "0.3.0", False, (), tmp_path)
        released_again.check()
    kept = place.rename(tmp_path / "kept")
    (checkout / "dist").rmdir()
    patch = ["git", "apply", "--index", str(kept / "release.patch")]
    subprocess.run(patch, cwd=checkout, check=True, capture_output=True, timeout=30)
    subprocess.run([*GIT, "commit", "-qm", "release"], cwd=checkout, check=True, timeout=30)
    assert changelog.fragments(checkout) == []
    with pytest.raises(Failure, match="add ARGS=--again"):
        making.Release(checkout, "0.3.0", False, (), tmp_path).check()

    place = released(True, None, *release.TRIALS)
    assert "not signed: no --key was given" in capsys.readouterr().out
    for file in place.glob("astraflow_*"):
        assert file.read_bytes() == (kept / file.name).read_bytes(), file.name
    assert len(list(place.glob("astraflow_*"))) == 4
