"""Whether a version may be released from this tree."""

from __future__ import annotations

import os
import re
import subprocess
from datetime import date
from pathlib import Path

from installers import Failure
from packaging.version import InvalidVersion, Version

CHANGELOG = "CHANGELOG.md"
SECTION = re.compile(r"^## (?P<version>\S+) \((?P<date>\d{4}-\d\d-\d\d)\)$", re.MULTILINE)


def parsed(text: str) -> Version:
    """A version as PEP 440 writes it; other spellings of the same one are refused."""
    try:
        version = Version(text)
    except InvalidVersion as error:
        raise Failure(
            f"{text!r} is not a version; expected one as in PEP 440, such as 0.2.0"
        ) from error
    if str(version) != text or version.local or version.epoch:
        public = version.public.rpartition("!")[2]
        raise Failure(f"{text!r} is not a version as an index lists it; did you mean {public!r}?")
    return version


def released(root: Path) -> dict[str, date]:
    """The versions that CHANGELOG.md has a section of, newest first, with their dates."""
    text = (root / CHANGELOG).read_text(encoding="utf-8")
    return {m["version"]: date.fromisoformat(m["date"]) for m in SECTION.finditer(text)}


def check_higher(version: Version, before: dict[str, date]) -> None:
    """Refuse a version that is not above every released one."""
    for other in before:
        if version <= Version(other):
            hint = (
                f"to build {other} once more from its commit, add ARGS=--again"
                if str(version) == other
                else "take a higher one"
            )
            raise Failure(f"{version} is not higher than {other}, which is released; {hint}")


def check_clean(root: Path) -> None:
    """Refuse a tree that differs from its commit: what is released is what the commit has."""
    changed = git(root, "status", "--porcelain").splitlines()
    if changed:
        listed = "\n  ".join([*changed[:10], *(["…"] if len(changed) > 10 else [])])
        raise Failure(
            f"the tree has changes that are not committed; commit or remove them first:\n  {listed}"
        )


def git(root: Path, *arguments: str, **variables: str) -> str:
    """What git prints in the checkout, with environment ``variables`` beside ours."""
    done = subprocess.run(
        ["git", *arguments],
        cwd=root,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode:
        raise Failure(f"`git {' '.join(arguments)}` failed:\n{done.stderr.strip()}")
    return done.stdout
