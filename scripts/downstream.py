#!/usr/bin/env python3
"""Run the tests of plugins of others against this tree, so that a change that breaks them is known before they are.

They are listed in downstream.toml, or the file given. Each is built and installed into a folder of its own; AstraFlow is that of
this tree, and what else they need comes from the package index.
"""

from __future__ import annotations

import argparse
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import dev
from packaging.requirements import InvalidRequirement, Requirement
from workspace import normal

from astraflow_contrib_plugin.checking.programs import TookTooLong, run_module
from astraflow_contrib_plugin.checking.target import CheckedTarget, resolve
from astraflow_core.errors import UserError

LIST = dev.ROOT / "downstream.toml"
DEADLINE_S = 900.0
_PIP_S = 300.0
_MOST_LINES = 15
PIP = ("--quiet", "--no-input", "--disable-pip-version-check")


@dataclass(frozen=True)
class Downstream:
    """A plugin of the list: a folder, or a requirement."""

    path: Path | None = None
    requirement: str = ""

    def __str__(self) -> str:
        return self.requirement or str(self.path)


def read(file: Path) -> list[Downstream]:
    """The plugins of a list."""
    try:
        listed = tomllib.loads(file.read_text(encoding="utf-8")).get("plugin", [])
    except (OSError, ValueError) as error:
        raise dev.Failure(f"{file}: {error}") from error
    found = []
    for number, each in enumerate(listed, 1):
        match each:
            case {"path": str(path), **rest} if not rest:
                found.append(Downstream(path=file.parent / path))
            case {"requirement": str(text), **rest} if not rest:
                try:
                    found.append(Downstream(requirement=str(Requirement(text))))
                except InvalidRequirement as error:
                    raise dev.Failure(f"{file}: plugin {number}: {error}") from error
            case _:
                raise dev.Failure(
                    f'{file}: plugin {number}: expected path = "FOLDER" or requirement = "NAME==VERSION"'
                )
    if not found:
        raise dev.Failure(f"{file} lists no [[plugin]]")
    return found


def problems(plugin: Downstream, work: Path, deadline_s: float) -> list[str]:
    """The reasons why its tests did not pass, empty if they did; ``work`` is an empty folder."""
    try:
        folder = plugin.path or _downloaded(plugin.requirement, work)
        target = resolve(str(folder.resolve()), work)
        if target.tests is None or target.site is None:
            return [f"{folder} has no folder tests"]
        if lacking := list(_lacking(target)):
            _pip(
                "install", *PIP, "-c", str(dev.CONSTRAINTS), "--target", str(target.site), *lacking
            )
        ended = run_module(
            "pytest",
            ["-q", "-p", "no:cacheprovider", str(target.tests)],
            folder,
            target.site,
            deadline_s,
        )
    except (UserError, TookTooLong) as error:
        return [str(error)]
    return ended.lines[-_MOST_LINES:] if ended.code else []


def _downloaded(requirement: str, work: Path) -> Path:
    """The folder of the sdist of a distribution of the index."""
    place = work / "sdist"
    _pip("download", *PIP, "--no-deps", "--no-binary", ":all:", "--dest", str(place), requirement)
    (archive,) = place.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(place, filter="data")
    return place / archive.name.removesuffix(".tar.gz")


def _lacking(target: CheckedTarget) -> Iterator[str]:
    """Requirements, those of the extra ``test`` too, that are not installed here."""
    installed = {normal(each.name) for each in metadata.distributions()}
    for text in target.metadata.requires or ():
        wanted = Requirement(text)
        asked = (
            any(wanted.marker.evaluate({"extra": extra}) for extra in ("", "test"))
            if wanted.marker
            else True
        )
        if asked and normal(wanted.name) not in installed:
            wanted.marker = None
            yield str(wanted)


def _pip(*arguments: str) -> None:
    ended = run_module("pip", arguments, dev.ROOT, None, _PIP_S)
    if ended.code:
        raise UserError(f"pip {arguments[0]}: {'; '.join(ended.lines[-3:])}")


def main(argv: list[str]) -> int:
    """Run them one after the other; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/dev.py downstream", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("list", nargs="?", type=Path, default=LIST, help="default: downstream.toml")
    parser.add_argument(
        "--deadline", type=float, default=DEADLINE_S, help="most seconds for the tests of each"
    )
    arguments = parser.parse_args(argv)
    failed = []
    for plugin in read(arguments.list):
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="astraflow-downstream-") as work:
            found = problems(plugin, Path(work).resolve(), arguments.deadline)
        print(
            f"{'failed' if found else 'passed'} {plugin}, {time.monotonic() - began:.0f} s",
            flush=True,
        )
        for line in found:
            print(f"  {line}")
        failed += [str(plugin)] if found else []
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except dev.Failure as failure:
        print(failure, file=sys.stderr)
        sys.exit(2)
