"""The steps of a release in order, each with its result."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path

import own_tools
import wheels
from installers import Failure, show

from releasing import (
    building,
    changelog,
    environments,
    inspecting,
    oldest,
    sbom,
    stamping,
    trying,
    upgrade,
)
from releasing import version as versions
from releasing.stamping import Member

TOOLS = Path(__file__).parent / "requirements.txt"
DIST = "dist"


@dataclass
class Release:
    """A release in the making."""

    root: Path
    version: str
    again: bool
    only: tuple[str, ...]
    work: Path
    day: date = field(default_factory=lambda: datetime.now(UTC).date())

    def __post_init__(self) -> None:
        self.trees = (self.work / "a", self.work / "b")
        self.out = self.work / "out"
        self.members: dict[str, Member] = {}
        self.chosen: list[Member] = []
        self.built: dict[str, tuple[Path, Path]] = {}

    def check(self) -> None:
        """Refuse what cannot be released, before anything is built."""
        number = versions.parsed(self.version)
        before = versions.released(self.root)
        if self.again:
            if self.version not in before:
                raise Failure(
                    f"CHANGELOG.md has no section of {self.version}, so it cannot be built again"
                )
            self.day = before[self.version]
        else:
            versions.check_higher(number, before)
        versions.check_clean(self.root)
        if not self.again:
            changelog.section(self.version, self.day, changelog.fragments(self.root))
        if self.place.exists():
            raise Failure(f"{self.place} is there already; remove it, or take another version")

    @property
    def place(self) -> Path:
        """Where the release goes when it is whole."""
        return self.root / DIST / self.version

    def copy(self) -> None:
        """Two copies of the commit, with the version and the changelog of the release, and the patch that makes them."""
        self.out.mkdir()
        tree, other = self.trees
        stamping.copy(self.root, tree)
        if not self.again:
            stamping.stamp(tree, self.version)
            changelog.write(tree, self.version, self.day)
            (self.out / "release.patch").write_text(self._patch(), encoding="utf-8")
        shutil.copytree(tree, other, symlinks=True)
        text = changelog.section_of(tree, self.version)
        (self.out / "CHANGELOG.md").write_text(text, encoding="utf-8")
        self.members = stamping.members(tree)
        have = self.members["astraflow-core"].version
        if have != self.version:
            raise Failure(f"this commit is {have}; check out the one of {self.version}")
        self.chosen = building.closure(self.only, self.members)

    def _patch(self) -> str:
        """What ``git apply`` makes of the commit the tree that is released; git's own index stays as it is."""
        index = {"GIT_INDEX_FILE": str(self.work / "index")}
        versions.git(self.root, "read-tree", "HEAD", **index)
        work_tree = f"--work-tree={self.trees[0]}"
        return versions.git(self.root, work_tree, "diff", "--binary", "--no-color", **index)

    def build(self) -> None:
        """Build twice, and look at what came out."""
        self.built = building.build_twice(self.trees, self.chosen, self.day, self.out)
        told = {name: member.version for name, member in self.members.items()}
        inspecting.inspect(self.built, told, own_tools.interpreter(TOOLS), self.work)

    def clean(self, version: str, backends: bool) -> Path | None:
        """An environment of a Python with all that is released; ``None`` if this machine lacks that Python."""
        python = environments.find(version)
        if python is None:
            return None
        wanted = environments.requirements(self.chosen, self.built, backends)
        return environments.create(self.work / f"python{version}", python, wanted)

    def install(self) -> str:
        """Install all of it together, import every entry point, list the plugins; and write the SBOM of that."""
        python = self.clean(environments.PYTHONS[0], backends=True)
        if python is None:
            raise Failure(f"no Python {environments.PYTHONS[0]} on this machine")
        said = self.use(python, self.quickstart)
        sbom.write(
            python,
            self.built,
            self.version,
            self.day,
            own_tools.interpreter(TOOLS),
            self.out / "sbom.cdx.json",
        )
        return said

    def use(self, python: Path, config: Path) -> str:
        """Try the release in an environment that has the packages for a run of ``config``: a summary of the results."""
        trying.load_entry_points(python)
        said = f"{len(self.built)} distributions"
        if "astraflow-runtime" in self.built:
            said += f", {trying.list_plugins(python)} plugins"
        if "astraflow-contrib-doctor" in self.built:
            trying.ask_doctor(python, config, self.work)
            said += ", doctor content"
        return said

    @property
    def quickstart(self) -> Path:
        """The config of the first run."""
        return self.trees[0] / "examples" / "quickstart.toml"

    def train(self) -> str:
        """Three updates of the quickstart, with what :meth:`install` has installed."""
        python = self.work / f"python{environments.PYTHONS[0]}" / "bin" / "python"
        needed = {name for name, m in self.members.items() if m.quickstart} | {"astraflow-runtime"}
        if lacking := needed - set(self.built):
            return f"left out, since {', '.join(sorted(lacking))} are not released"
        return f"{trying.train(python, self.quickstart, self.work, trying.QUICKSTART)} updates"

    def _runs_tables(self) -> bool:
        needed = upgrade.needed(self.members)
        return upgrade.TESTING in needed and set(needed) <= set(self.built)

    def pythons(self) -> str:
        """The same without backends on newer Pythons, and a run that needs no backend."""
        said = []
        for version in environments.PYTHONS[1:]:
            try:
                python = self.clean(version, backends=False)
            except environments.NoWheels as error:
                said.append(f"{version} not tried: {str(error).splitlines()[-1].strip()}")
                continue
            if python is None:
                said.append(f"{version} not tried: this machine has none")
                continue
            config = upgrade.table(self.work)
            told = self.use(python, config)
            if self._runs_tables():
                told += f", {trying.train(python, config, self.work, ())} updates of a table"
            said.append(f"{version}: {told}")
        return "; ".join(said)

    def oldest(self) -> str:
        """Light tests with the oldest versions that the pyproject files allow."""
        missing = (set(self.members) | set(oldest.WITH_BOUNDS)) - set(self.built)
        if missing:
            return f"left out, since {', '.join(sorted(missing)[:3])} … are not released"
        found = oldest.test(
            self.members, self.built, Path(sys.executable), self.trees[0], self.work
        )
        (self.out / "oldest.txt").write_text("\n".join(found) + "\n", encoding="utf-8")
        return f"tests and a run pass with {', '.join(found[:4])} …; oldest.txt has all"

    def upgrade(self) -> str:
        """A run of the release before, resumed with this one."""
        if not self._runs_tables():
            return "left out, since not all that a run needs is released"
        before = upgrade.release_before(self.version, list(versions.released(self.root)))
        tree = self.work / "previous"
        tag = f"v{before}"
        tagged = bool(versions.git(self.root, "tag", "--list", tag).strip())
        stamping.copy(self.root, tree, tag if tagged else "HEAD")
        if not tagged:
            stamping.stamp(tree, before)
        members = stamping.members(tree)
        chosen = building.closure(upgrade.needed(members), members)
        out, work = self.work / "previous-built", self.work / "previous-sdists"
        out.mkdir()
        work.mkdir()
        by_path = {member.path: member.name for member in chosen}
        built = {by_path[path]: files for path, files in wheels.build(by_path, out, work).items()}
        python = environments.create(
            self.work / "upgraded",
            Path(sys.executable),
            environments.requirements(chosen, built, False),
        )
        directory = upgrade.start_and_stop(python, self.work)
        now = building.closure(upgrade.needed(self.members), self.members)
        environments.install(python, environments.requirements(now, self.built, False))
        origin = "its tag" if tagged else "this tree with a lower number"
        return f"a run of {before} ({origin}) {upgrade.resume(python, self.work, directory)}"

    def finish(self, key: str | None) -> str:
        """Sums, a signature if there is a key, and everything in its place."""
        sums = building.write_sums(self.out)
        if key:
            sign(sums, key)
        self.place.parent.mkdir(exist_ok=True)
        shutil.move(self.out, self.place)
        signed = f"signed by {key}" if key else "not signed: no --key was given"
        return f"{len(self.built)} wheels and sdists in {show(self.place)}, {signed}"


def sign(file: Path, key: str) -> None:
    """A detached signature of a file by gpg."""
    command = [
        "gpg",
        "--batch",
        "--yes",
        "--local-user",
        key,
        "--armor",
        "--detach-sign",
        str(file),
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    except FileNotFoundError as error:
        raise Failure("--key needs gpg, which is not installed") from error
    if done.returncode:
        raise Failure(f"gpg could not sign with {key!r}:\n{done.stderr.strip()}")
