"""Write the number of a release into a copy of the tree.

Distributions that have the version of the core get the new one, others keep theirs. Requirements of our distributions on one
another follow: `==` names the new version, and a range that would exclude it becomes `>=X.Y,<X.(Y+1)`.
"""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dev import PLACES
from installers import Failure
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

PREFIX = "astraflow-"
_REQUIREMENT = re.compile(
    r"(?P<name>astraflow-[a-z0-9-]+)(?P<extras>\[[\w,-]+\])?(?P<specifier>==\d[\w.]*|>=\d[\w.]*,<\d[\w.]*)"
)
_TEXTS = (".md", ".py", ".toml", ".json", ".txt")
SURFACE = "tests/surface.json"
API = "core/src/astraflow_core/component.py"


@dataclass(frozen=True)
class Member:
    """A distribution of the tree."""

    path: Path
    name: str
    version: str
    dependencies: tuple[Requirement, ...]
    extras: Mapping[str, tuple[Requirement, ...]] = field(default_factory=dict)
    quickstart: bool = False

    def ours(self) -> set[str]:
        """Names of the distributions of the tree that it needs, extras included."""
        every = [*self.dependencies, *(r for each in self.extras.values() for r in each)]
        return {r.name for r in every if r.name.startswith(PREFIX)}


def members(root: Path) -> dict[str, Member]:
    """Name → distribution, in the order of their places."""
    found = {}
    for place in PLACES:
        for file in sorted(root.glob(f"{place}/pyproject.toml")):
            content = tomllib.loads(file.read_text(encoding="utf-8"))
            project = content["project"]
            extras = project.get("optional-dependencies", {})
            found[project["name"]] = Member(
                file.parent,
                project["name"],
                project["version"],
                tuple(map(Requirement, project.get("dependencies", ()))),
                {extra: tuple(map(Requirement, lines)) for extra, lines in extras.items()},
                content.get("tool", {}).get("astraflow", {}).get("quickstart") is True,
            )
    if next(iter(found), "") != "astraflow-core":
        raise Failure(f"no core/pyproject.toml under {root}: is this a whole checkout?")
    return found


def copy(root: Path, target: Path, commit: str = "HEAD") -> None:
    """The files of a commit, in a folder that is made."""
    target.mkdir(parents=True)
    archive = target.with_suffix(".tar")
    command = ["git", "archive", "--format=tar", f"--output={archive}", commit]
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise Failure(f"`git archive {commit}` failed:\n{done.stderr.strip()}")
    with tarfile.open(archive) as packed:
        packed.extractall(target, filter="data")
    archive.unlink()


def stamp(tree: Path, version: str) -> list[str]:
    """Write ``version`` into a copy of the tree; returns the names of the distributions that got it."""
    before = members(tree)
    old = before["astraflow-core"].version
    moved = [name for name, member in before.items() if member.version == old]
    versions = {name: member.version for name, member in before.items()} | dict.fromkeys(
        moved, version
    )
    for name in moved:
        folder = before[name].path
        _replace(folder / "pyproject.toml", f'\nversion = "{old}"\n', f'\nversion = "{version}"\n')
        for module in folder.glob("src/*/__init__.py"):
            if f'__version__ = "{old}"' in module.read_text(encoding="utf-8"):
                _replace(module, f'__version__ = "{old}"', f'__version__ = "{version}"')
    for file in sorted(tree.rglob("*")):
        if file.suffix in _TEXTS and file.is_file() and file.name != "CHANGELOG.md":
            text = file.read_text(encoding="utf-8", errors="surrogateescape")
            new = following(text, versions)
            if new != text:
                file.write_text(new, encoding="utf-8", errors="surrogateescape")
    _record(tree, old, version)
    return moved


def following(text: str, versions: Mapping[str, str]) -> str:
    """The text with requirements that allow the ``versions`` of our distributions."""

    def renew(match: re.Match[str]) -> str:
        version = versions.get(match["name"])
        specifier = SpecifierSet(match["specifier"])
        if version is None or specifier.contains(version, prereleases=True):
            return match[0]
        new = f"=={version}" if match["specifier"].startswith("==") else span(version)
        return f"{match['name']}{match['extras'] or ''}{new}"

    return _REQUIREMENT.sub(renew, text)


def span(version: str) -> str:
    """The range of the versions that are compatible with one."""
    parsed = Version(version)
    dev = ".dev0" if parsed.is_prerelease else ""
    return f">={parsed.major}.{parsed.minor}{dev},<{parsed.major}.{parsed.minor + 1}"


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise Failure(f"{file}: expected {old.strip()!r} once, found {text.count(old)}")
    file.write_text(text.replace(old, new), encoding="utf-8")


def _record(tree: Path, old: str, version: str) -> None:
    """The record of the public names: from this release on its plugin API is kept."""
    file = tree / SURFACE
    match = re.search(
        r"^API_VERSION = \((\d+), (\d+)\)$", (tree / API).read_text(encoding="utf-8"), re.M
    )
    if match is None:
        raise Failure(f"{API}: expected API_VERSION = (MAJOR, MINOR)")
    record = json.loads(file.read_text(encoding="utf-8"))
    record["released"] = f"{match[1]}.{match[2]}"
    entry = record["names"]["astraflow_core.__version__"]
    entry["signature"] = entry["signature"].replace(old, version)
    for each in record["names"].values():
        each.pop("fragment", None)  # it has moved into CHANGELOG.md
    text = json.dumps(record, indent=1, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")
